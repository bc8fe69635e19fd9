"""The lexicon as phrases and frames, and phrases drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from modeling_vanilla.data.grammar.clause import (
    ADJECTIVE,
    NOUNS_OF,
    Determiner,
    Noun,
    Phrase,
    Verb,
    noun_phrase,
    possessive,
)
from modeling_vanilla.data.grammar.lexicon import (
    ACTIVITY,
    ADVERBS,
    CARDINALS,
    COUNTED,
    FAR_TRANSPORT,
    FEELINGS,
    GIVING,
    INDEFINITE,
    NAMES,
    NOUNS,
    OWNABLE,
    PLACES,
    PRONOUNS,
    SIDES,
    SPOTS,
    STATIVE,
    TIMES,
    TRANSITIVE,
    TRANSPORT,
    WEEKDAYS,
    WEEKLY,
    entries,
    rows,
)


# ---- The lexicon as phrases ----------------------------------------------------------------------------------------
def _phrases(text: str) -> list[Phrase]:
    return [Phrase(zh, en) for zh, en in entries(text)]


PRONOUN = [Phrase(zh, en, number, them, their) for zh, en, them, their, number in entries(PRONOUNS, 5)]
ASKED = [person for person in PRONOUN if not person.zh.startswith("我")]  # one does not ask about oneself
NAME, FEELING, ADVERB, WEEKDAY, MEANS, FAR_MEANS = (
    _phrases(text) for text in (NAMES, FEELINGS, ADVERBS, WEEKDAYS, TRANSPORT, FAR_TRANSPORT)
)
TIME = {tense: _phrases(text) for tense, text in TIMES.items()}
COUNT = _phrases(CARDINALS)
BEFORE_NOUN = {
    name: [item for item in ADJECTIVE.values() if name in item.categories.split() and item.before_noun != "-"]
    for name in NOUNS
}
COLOUR = [item for item in ADJECTIVE.values() if item.comparative == "-"]
COMPARABLE = [item for item in ADJECTIVE.values() if item.comparative != "-"]

PLACE = {zh: Phrase(zh, en, head=zh) for zh, en, _ in rows(PLACES)}
TAGS = {zh: tags.split() for zh, _, tags in rows(PLACES)}
DESTINATION = {  # at school, to school
    zh: Phrase(zh.rstrip("里上"), "to " + place.en.split(maxsplit=1)[1])
    for zh, place in PLACE.items()
    if "home" not in TAGS[zh]
}
ROOM = [Phrase(zh.removesuffix("里") + "里", PLACE[zh].en) for zh in PLACE if "food" in TAGS[zh] and zh != "家"]
ZOO, FARM = Phrase("动物园里", "at the zoo"), Phrase("农场里", "on the farm")
SPOT = {
    thing + side: Phrase(thing + side, f"{SIDES[side]} the {en}")
    for thing, en, sides in entries(SPOTS, 3)
    for side in sides.split()
}
A, THE, THE_MANY = Determiner("一", "a", measured=True), Determiner("", "the"), Determiner("", "the", True, suffix="们")
BARE, ANY = Determiner("", "", True), Determiner("", "any", True)
THIS, THAT = Determiner("这", "this", measured=True), Determiner("那", "that", measured=True)
THESE, THOSE = Determiner("这些", "these", True), Determiner("那些", "those", True)
SOME, MANY = Determiner("一些", "some", True), Determiner("很多", "a lot of", True)
WHICH, HOW_MANY = Determiner("哪", "which", False, True, asks=True), Determiner("几", "how many", True, True, asks=True)
QUESTION_WORDS = "谁 who, 什么 what, 哪里 where, 什么时候 when, 为什么 why, 怎么 how"
WHO, WHAT, WHERE, WHEN, WHY, HOW = (Phrase(zh, en, asks=True) for zh, en in entries(QUESTION_WORDS))
NOBODY = Phrase("", "it")
IS, EQUALS, AT, THERE = Verb("", "be"), Verb("是", "be"), Verb("在", "be"), Verb("有", "be")
GO, COME, PUT, BUY = Verb("去", "go"), Verb("来", "come"), Verb("放在", "put"), Verb("买", "buy")
LIKE, WANT, HAVE_TIME = Verb("喜欢", "like"), Verb("想要", "want"), Verb("有时间", "have time")
THINK, KNOW, HOPE = Verb("觉得", "think"), Verb("知道", "know that"), Verb("希望", "hope")
WEATHER = Verb("下雨", "rain", activity=True), Verb("下雪", "snow", activity=True)
RESTING = Verb("睡觉", "sleep", activity=True), Verb("玩", "play", activity=True)


@dataclass(frozen=True)
class Frame:
    """A verb with what goes with it: categories of its object, letters of its modes, its places."""

    verb: Verb
    categories: list[str]
    modes: str
    places: list[Phrase]


def _frame(zh: str, en: str, categories: str, modes: str = "", tags: str = "") -> Frame:
    outer, _, inner = zh.partition("/")
    places = [place for name, place in PLACE.items() if set(tags.split()) & set(TAGS[name])]
    return Frame(Verb(outer, en, inner, activity=not categories), categories.split(), modes, places)


TRANSITIVES, GIVES, STATES = ([_frame(*row) for row in rows(table)] for table in (TRANSITIVE, GIVING, STATIVE))
ACTIVITIES = [_frame(zh, en, "", modes, tags) for zh, en, modes, tags in rows(ACTIVITY)]
PURPOSES = [frame for frame in (*TRANSITIVES, *ACTIVITIES) if frame.verb.zh != "看见"]  # seeing is not done on purpose
FRAMES_AT = {zh: [frame for frame in PURPOSES if PLACE[zh] in frame.places] for zh in PLACE}
EAT, DRINK = TRANSITIVES[:2]

# ---- Drawing phrases -----------------------------------------------------------------------------------------------
# The odds from here on make for plausible sentences, and show every word often enough in 20,000 pairs.
T = TypeVar("T")


def pick(rng: Random, items: Sequence[T]) -> T:
    """Draw one of the items."""
    # random() alone: its stream is the one that Python promises to keep from version to version.
    return items[int(rng.random() * len(items))]


def draw_small(rng: Random) -> int:
    """Draw an index into `COUNT`, small ones more often."""
    return int(rng.random() * (1 + rng.random()) / 2 * len(COUNT))


def draw_number(rng: Random) -> Determiner:
    """Draw "a" or a numeral."""
    count = COUNT[draw_small(rng)]
    return A if rng.random() < 0.45 else Determiner(count.zh, count.en, plural=True, measured=True)


def draw_kin(rng: Random, owners: Sequence[Phrase]) -> Phrase:
    """Draw somebody's mother or other relative."""
    return noun_phrase(pick(rng, NOUNS_OF["kin"]), possessive(pick(rng, owners), near=True))


def draw_owner(rng: Random) -> Phrase:
    """Draw whose something is."""
    chance = rng.random()
    if chance < 0.65:
        return pick(rng, PRONOUN if chance < 0.45 else NAME)
    return draw_kin(rng, PRONOUN[:4]) if chance < 0.77 else noun_phrase(pick(rng, NOUNS_OF["person"]), THE)


def draw_somebody(rng: Random, category: str, stranger: bool = False) -> Phrase:
    """Draw the teacher, that young doctor or my friends; a stranger may also be "three students"."""
    determiner = pick(rng, (THIS, THAT, THESE, THOSE))
    if stranger and rng.random() < 0.3:  # not for subjects: Chinese does not begin a sentence with a numeral
        determiner = draw_number(rng)
    elif rng.random() < 0.55:
        friend = possessive(pick(rng, PRONOUN + NAME), many=rng.random() < 0.5)
        determiner = friend if category == "friend" else pick(rng, (THE, THE_MANY))
    described = determiner.measured and rng.random() < 0.25
    adjective = pick(rng, BEFORE_NOUN[category]) if described else None
    return noun_phrase(pick(rng, NOUNS_OF[category]), determiner, adjective)


def draw_person(rng: Random, pronouns: Sequence[Phrase] = PRONOUN, stranger: bool = False, kin: bool = True) -> Phrase:
    """Draw a pronoun, a name, somebody's mother or somebody described."""
    chance = rng.random()
    if chance < 0.68:
        return pick(rng, pronouns if chance < 0.36 else NAME)
    if chance < 0.8 and kin:
        return draw_kin(rng, [*pronouns, *NAME])
    return draw_somebody(rng, pick(rng, ("person", "person", "person", "human", "friend")), stranger)


def draw_other(rng: Random, subject: Phrase, stranger: bool = False, kin: bool = True) -> Phrase:
    """Draw another person than the subject: neither "I saw me" nor "we saw me"."""
    person = draw_person(rng, PRONOUN, stranger, kin)
    return draw_other(rng, subject, stranger, kin) if person.zh[:1] == subject.zh[:1] else person


def draw_thing(rng: Random, noun: Noun, *kinds: str) -> Phrase:
    """Draw a phrase around a noun, with one of the kinds of determiner and now and then an adjective."""
    kind, fitting, odds = pick(rng, kinds), BEFORE_NOUN[noun.category], 0.2
    singular_mass = noun.unit and not noun.en.endswith("s")
    if kind == "number":
        determiner = draw_number(rng)
    elif kind == "own" and noun.among(OWNABLE):
        determiner = possessive(draw_owner(rng))
        fitting = [adjective for adjective in fitting if not adjective.before_noun.endswith("的")]  # not 的 twice
    elif kind in ("own", "this") or not noun.among(INDEFINITE):
        determiner = pick(rng, (THIS, THAT) if singular_mass or rng.random() < 0.6 else (THESE, THOSE))
    else:
        determiner, odds = BARE if kind == "bare" else pick(rng, (SOME, MANY)), 0.08
    return noun_phrase(noun, determiner, pick(rng, fitting) if fitting and rng.random() < odds else None)


def draw_noun(rng: Random, categories: str) -> Noun:
    """Draw a category, then a noun of it."""
    return pick(rng, NOUNS_OF[pick(rng, categories.split())])


def draw_time(rng: Random, tense: str) -> Phrase:
    """Draw a time of a tense: "habit", "past" or "future"."""
    chance = rng.random()
    if chance < 0.2:
        (zh, en), day = WEEKLY[tense], pick(rng, WEEKDAY)
        return Phrase(f"{zh}星期{day.zh}", f"{en} {day.en}")
    if chance < 0.32 and tense in COUNTED:
        (zh, en), count = COUNTED[tense], COUNT[draw_small(rng)]
        unit_zh, unit = pick(rng, (("天", "days"), ("个小时", "hours")))
        return Phrase(count.zh + unit_zh + zh, en.format(f"{count.en} {unit}"))
    return pick(rng, TIME[tense])
