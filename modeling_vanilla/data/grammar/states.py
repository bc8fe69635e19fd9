"""Clauses drawn at random: what is, and sentences of two clauses."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from modeling_vanilla.data.grammar.clause import (
    ADJECTIVE,
    MODES,
    NOUN,
    NOUNS_OF,
    Adjective,
    Clause,
    Determiner,
    Noun,
    Phrase,
    Sentence,
    chinese,
    complements,
    english,
    noun_phrase,
    possessive,
    sentence,
    verb_group,
)
from modeling_vanilla.data.grammar.events import draw_circumstances, draw_event, draw_place, draw_transitive
from modeling_vanilla.data.grammar.lexicon import FAULTS, FOOD, GOODS, MERITS, PEOPLE
from modeling_vanilla.data.grammar.vocabulary import (
    ACTIVITIES,
    ANY,
    ASKED,
    AT,
    BARE,
    BUY,
    COLOUR,
    COME,
    COMPARABLE,
    DESTINATION,
    DRINK,
    EAT,
    EQUALS,
    FARM,
    FEELING,
    GO,
    HAVE_TIME,
    HOPE,
    HOW_MANY,
    IS,
    KNOW,
    LIKE,
    MANY,
    NAME,
    NOBODY,
    PLACE,
    PRONOUN,
    RESTING,
    ROOM,
    SOME,
    SPOT,
    STATES,
    TAGS,
    THAT,
    THERE,
    THESE,
    THINK,
    THIS,
    THOSE,
    TIME,
    TRANSITIVES,
    WANT,
    WEATHER,
    WHERE,
    WHICH,
    WHO,
    WHY,
    ZOO,
    draw_noun,
    draw_other,
    draw_owner,
    draw_person,
    draw_somebody,
    draw_thing,
    draw_time,
    pick,
)

# ---- Drawing what is -----------------------------------------------------------------------------------------------
DEGREES = (("很", ""), ("很", ""), ("很", ""), ("非常", "very "), ("真", "really "))
DENIED = (("", ""), ("", ""), ("太", "very "))
OPPOSITES = (("新", "旧"), ("便宜", "贵"), ("有意思", "无聊"))


def draw_state(rng: Random) -> Clause:
    """Draw liking, wanting, needing, knowing or having, said or asked."""
    frame, chance = pick(rng, STATES), rng.random()
    asking, negative, verb, noun = chance < 0.3, chance > 0.78, frame.verb, draw_noun(rng, " ".join(frame.categories))
    clause = Clause(draw_person(rng, ASKED if asking else PRONOUN), verb, negative=negative)
    if noun.among(PEOPLE):
        thing = draw_other(rng, clause.subject, kin=False)
    elif verb == LIKE:
        thing = draw_thing(rng, noun, "bare", "bare", "this", "own")
    elif negative:
        thing = noun_phrase(noun, ANY) if verb.zh == "有" else draw_thing(rng, noun, "this")
    else:
        thing = draw_thing(rng, noun, "number", "number", *(("some",) if noun.among(FOOD) else ()))
    if chance < 0.07 and not noun.among(PEOPLE):
        thing = noun_phrase(noun, WHICH if verb in (LIKE, WANT) else HOW_MANY)
    elif chance < 0.14:
        clause = replace(clause, subject=WHO)
    elif chance < 0.18 and verb == LIKE:
        clause = replace(clause, reason=WHY)
    elif asking:
        clause = replace(clause, question=pick(rng, "吗吗不"))
    return replace(clause, object=thing)


def predicate(clause: Clause, adjective: Phrase | Adjective, degree: tuple[str, str]) -> Clause:
    """Say of a clause's subject what it is like.

    Args:
        clause: has the subject, and whether it is negative or a question.
        adjective: what is said.
        degree: Chinese and English before the adjective, such as ("非常", "very "); a question has none.

    Returns:
        The clause with "be" as its verb and the adjective as its object.
    """
    zh, en = degree
    if clause.question:
        zh, en = (adjective.zh[0] + "不" if clause.question == "不" else ""), ""
    after = "了" if zh == "太" and not clause.negative else ""
    subject = clause.subject.head
    pairs = frozenset({(adjective.zh, subject)} if subject and isinstance(adjective, Adjective) else ())
    return replace(clause, verb=IS, object=Phrase(zh + adjective.zh + after, en + adjective.en, combinations=pairs))


def compared(
    subject: Phrase, adjective: Adjective, other: Phrase, negative: bool = False, step: tuple[str, str] = ("", "")
) -> Clause:
    """Say that the subject is more so than another, or not as much so.

    Args:
        subject: who or what is compared.
        adjective: in what.
        other: with whom or what.
        negative: say "not as ... as".
        step: by how much: what follows the Chinese adjective and what precedes the English one.

    Returns:
        The clause, whose mode holds the 比 or 没有.
    """
    after, more = ("", "") if negative else step
    said = f"as {adjective.en} as" if negative else f"{more}{adjective.comparative} than"
    pairs = frozenset({(adjective.zh, subject.head)} if subject.head else ())
    thing = Phrase(other.zh + adjective.zh + after, f"{said} {other.object_en or other.en}", combinations=pairs)
    return Clause(subject, IS, MODES["than"], object=thing, negative=negative)


def draw_relative(rng: Random, noun: Noun) -> Phrase:
    """Draw "the book that I bought yesterday"."""
    frame = pick(rng, [frame for frame in TRANSITIVES if noun.category in frame.categories and "p" in frame.modes])
    time = draw_time(rng, "past") if rng.random() < 0.5 else None
    clause = Clause(draw_person(rng), frame.verb, MODES["relative"], time=time)
    clause = replace(clause, place=draw_place(rng, frame, clause))
    many = not (noun.unit and not noun.en.endswith("s")) and rng.random() < 0.5
    that, the = (THOSE, replace(THOSE, en="the")) if many else (THAT, replace(THAT, en="the"))
    phrase = noun_phrase(noun, the)
    pairs = clause.combinations() | {(frame.verb.zh, noun.zh)}
    zh = f"{chinese(clause)}的{noun_phrase(noun, that).zh}"
    return replace(phrase, zh=zh, en=f"{phrase.en} that {english(clause)}", combinations=pairs)


def draw_something(rng: Random, adjectives: Sequence[Adjective]) -> tuple[Phrase, Adjective]:
    """Draw one of the adjectives and something of which it can be said."""
    adjective = pick(rng, adjectives)
    noun = draw_noun(rng, adjective.categories)
    if noun.among(f"{FOOD} {GOODS} letter show") and rng.random() < 0.2:
        return draw_relative(rng, noun), adjective
    if noun.among(PEOPLE) and (rng.random() < 0.6 or adjective.zh == "出名"):
        subject = draw_somebody(rng, noun.category)
    elif noun.among(PEOPLE):
        subject = draw_person(rng)
    else:
        subject = draw_thing(rng, noun, "this", "own")
    return draw_something(rng, adjectives) if subject.combinations else (subject, adjective)  # no big small cat


def draw_description(rng: Random, asking: bool = True) -> Clause:
    """Draw what something is like, or how somebody feels."""
    chance, colour = rng.random(), rng.random() < 0.1
    negative, question = chance < 0.2, "吗" if asking and chance > 0.8 else ""
    degree = pick(rng, DENIED if negative else DEGREES if asking else DEGREES[:4])
    if colour:
        subject, adjective = draw_something(rng, COLOUR)
        said = Phrase(adjective.before_noun, adjective.en, combinations=frozenset({(adjective.zh, subject.head)}))
        return Clause(subject, EQUALS, object=said, negative=negative, question=question)
    if rng.random() < 0.4:
        quality: Phrase | Adjective = pick(rng, FEELING)
        past, subject = rng.random() < 0.5, draw_person(rng, ASKED if question else PRONOUN)
        time = draw_time(rng, "past") if past else pick(rng, (None, Phrase("现在", "now"), Phrase("今天", "today")))
        clause = Clause(subject, IS, MODES["state_past" if past else "habit"], time=time, negative=negative)
    else:
        subject, quality = draw_something(rng, COMPARABLE)
        clause = Clause(subject, IS, negative=negative)
    question = "不" if question and len(quality.zh) == 1 and chance > 0.9 else question
    return predicate(replace(clause, question=question), quality, degree)


def draw_comparison(rng: Random) -> Clause:
    """Draw that one is more so than another, or not as much so."""
    subject, adjective = draw_something(rng, COMPARABLE)
    negative, noun = rng.random() < 0.3, NOUN.get(subject.head)
    if noun is None or noun.among(PEOPLE):
        other = draw_other(rng, subject)
    else:
        this, these = (THIS, THESE) if subject.zh[0] == "那" else (THAT, THOSE)
        single = Phrase(this.zh + noun.measure, f"{this.en} one")
        other = single if subject.number == "s" else Phrase(these.zh, these.en)
    step = pick(rng, (("", ""), ("", ""), ("得多", "much "), ("一点儿", "a little ")))
    return compared(subject, adjective, other, negative, step)


def draw_spot(rng: Random, noun: Noun) -> Phrase:
    """Draw where a thing of this kind may be: food on the table or in the fridge, and nothing else in the fridge."""
    if noun.among(FOOD):
        return SPOT[pick(rng, ("桌子上", "冰箱里"))]
    return pick(rng, [spot for zh, spot in SPOT.items() if zh != "冰箱里"])


def draw_location(rng: Random) -> Clause:
    """Draw where something or somebody is, or ask for it."""
    chance = rng.random()
    if rng.random() < 0.5:
        noun = draw_noun(rng, f"text clothes device thing pet {FOOD}")
        spot = draw_spot(rng, noun)
        there = replace(spot, combinations=frozenset({(noun.zh, spot.zh)}))
        clause = Clause(draw_thing(rng, noun, "this", "own", "own"), AT, object=there)
    else:
        person = draw_person(rng, ASKED if chance < 0.4 else PRONOUN)
        clause = Clause(person, AT, object=pick(rng, list(PLACE.values())))
        if rng.random() < 0.5:
            clause = replace(clause, mode=MODES["state_past"], time=draw_time(rng, "past"))
    if chance < 0.4:
        return replace(clause, object=WHERE) if chance < 0.15 else replace(clause, question="吗")
    return replace(clause, negative=chance > 0.8)


def draw_existence(rng: Random) -> Clause:
    """Draw that there is something somewhere, or ask for it."""
    chance = rng.random()
    noun = draw_noun(rng, f"text clothes device thing pet {FOOD} wild wild farm farm person human")
    if noun.among("wild farm person human"):
        spot = {"wild": ZOO, "farm": FARM}.get(noun.category) or pick(rng, ROOM)
    else:
        spot = draw_spot(rng, noun)
    thing = draw_thing(rng, noun, "number") if rng.random() < 0.7 else noun_phrase(noun, pick(rng, (SOME, MANY)))
    if chance < 0.45:
        thing = noun_phrase(noun, ANY if chance < 0.35 else HOW_MANY)
    clause = Clause(Phrase(spot.zh, "there", thing.number), THERE, object=thing, place=Phrase("", spot.en))
    return replace(clause, negative=chance < 0.2, question="吗" if 0.2 <= chance < 0.35 else "")


def draw_identity(rng: Random) -> Clause:
    """Draw what somebody or something is: a doctor, my friend, Tom's book."""
    chance, many = rng.random(), rng.random() < 0.3
    negative, question = 0.2 < chance < 0.4, pick(rng, "吗吗不") if chance < 0.2 else ""
    if rng.random() < 0.5:
        whose = Determiner("谁的", "whose", asks=True) if chance > 0.85 else possessive(draw_owner(rng))
        what = noun_phrase(draw_noun(rng, f"{GOODS} pet"), replace(whose, plural=many))
        this, that = ("these", "those") if what.number == "p" else ("this", "that")  # 这是我的鞋: these are my shoes
        zh, en = pick(rng, (("这", this), ("那", that)))
        subject = Phrase(zh + ("些" if many else ""), en, what.number)
    else:
        subject = pick(rng, (ASKED if question else PRONOUN) + NAME)
        many = subject.number == "p" and subject.zh != "你"
        if rng.random() < 0.6:
            what = noun_phrase(pick(rng, NOUNS_OF["person"]), BARE if many else Determiner("", "a"))
        else:
            owner = pick(rng, [other for other in PRONOUN + NAME if other.zh[0] != subject.zh[0]])
            what = noun_phrase(pick(rng, NOUNS_OF["friend"]), replace(possessive(owner), plural=many))
    return Clause(subject, EQUALS, object=what, negative=negative, question=question)


def draw_animal(rng: Random) -> Clause:
    """Draw a pet that sleeps, plays or drinks."""
    noun = pick(rng, NOUNS_OF["pet"])
    clause = draw_circumstances(rng, draw_thing(rng, noun, "this", "this", "own"), pick(rng, "nph"))
    if rng.random() < 0.25:
        return replace(clause, verb=DRINK.verb, object=noun_phrase(NOUN[pick(rng, ("水", "牛奶"))], BARE))
    spot = draw_spot(rng, noun)
    place = replace(spot, combinations=frozenset({(noun.zh, spot.zh)}))
    return replace(clause, verb=pick(rng, RESTING), place=place)


# ---- Drawing what is joined ----------------------------------------------------------------------------------------
def draw_command(rng: Random) -> Sentence:
    """Draw "please ...", "don't ..." or "let's ..."."""
    zh, en, who = pick(rng, (("请{}", "Please", 1), ("别{}", "Don't", 1), ("我们{}吧", "Let's", 4)))
    clause = draw_event(rng, "f", PRONOUN[who], negative=en == "Don't")  # which keeps "two" and "some" out
    if clause.verb.zh == "看见":
        return draw_command(rng)
    clause = replace(clause, subject=NOBODY, mode=MODES["habit"], negative=False)
    if who == 1:
        clause = replace(clause, time=None)
    elif clause.verb == COME:
        clause = replace(clause, verb=GO)
    source, target = zh.format(chinese(clause)), f"{en} {clause.verb.en} {complements(clause)}"
    return Sentence(source + "。", target.strip() + ".", clause.combinations())


def draw_bad_weather(rng: Random, mode: str) -> Clause:
    """Draw what people do when it rains: stay in, or not go out."""
    clause = Clause(draw_person(rng), IS, MODES[mode])
    if rng.random() < 0.5:
        indoors = pick(rng, [frame for frame in ACTIVITIES if PLACE["家"] in frame.places])
        return replace(clause, verb=indoors.verb, place=PLACE["家"])
    there = DESTINATION[pick(rng, [zh for zh in DESTINATION if "city" not in TAGS[zh] and zh[-1] != "里"])]
    return replace(clause, verb=GO, object=there, negative=True)


def draw_because(rng: Random) -> Sentence:
    """Draw a cause and what follows: weather keeps people in, a feeling makes them want something or not."""
    if rng.random() < 0.4:
        time = pick(rng, TIME["past"])
        cause, effect = Clause(NOBODY, pick(rng, WEATHER), MODES["past"], time=time), draw_bad_weather(rng, "past")
    else:
        subject, feeling = pick(rng, PRONOUN), pick(rng, FEELING)
        cause = predicate(Clause(subject, IS), feeling, pick(rng, DEGREES[2:4]))
        if feeling.zh in ("饿", "渴"):
            effect = draw_transitive(rng, Clause(subject, IS, MODES["want"]), EAT if feeling.zh == "饿" else DRINK)
        else:
            effect = draw_event(rng, "m", subject, timed=False, negative=feeling.zh != "高兴")
        if effect.mode in (MODES["like"], MODES["skill"]):
            effect = replace(effect, mode=MODES["want"])
    return sentence(cause, effect, zh="因为{}，所以{}", en="Because {}, {}")


def draw_if(rng: Random) -> Sentence:
    """Draw a condition, in the present tense, and its consequence."""
    time = draw_time(rng, "future")
    if rng.random() < 0.4:
        condition, effect = Clause(NOBODY, pick(rng, WEATHER), time=time), draw_bad_weather(rng, "future")
    else:
        condition = Clause(pick(rng, PRONOUN), HAVE_TIME, time=time)
        effect = draw_event(rng, "f", condition.subject, timed=False, negative=False)
    return sentence(condition, replace(effect, link="就"), zh="如果{}，{}", en="If {}, {}")


def draw_although(rng: Random) -> Sentence:
    """Draw something done in spite of a feeling or of a fault."""
    degree = pick(rng, DEGREES[2:4])
    if rng.random() < 0.5:
        burdens = [feeling for feeling in FEELING if feeling.zh in ("累", "忙", "难过", "紧张")]
        subject = pick(rng, PRONOUN)
        fact = predicate(Clause(subject, IS), pick(rng, burdens), degree)
        effect = draw_event(rng, "m", subject, timed=False, negative=False)
        effect = replace(effect, mode=MODES[pick(rng, ("want", "must"))])
    else:
        thing, fault = draw_something(rng, [ADJECTIVE[zh] for zh in FAULTS.split()])
        fact = predicate(Clause(thing, IS), fault, degree)
        it = Phrase("它们", "them") if thing.number == "p" else Phrase("它", "it")
        choices = ((LIKE, "habit"), (WANT, "habit"), (BUY, "want"), (BUY, "future"))
        verb, mode = pick(rng, choices if NOUN[thing.head].among(GOODS) else choices[:1])
        effect = Clause(draw_person(rng), verb, MODES[mode], object=it)
    return sentence(fact, effect, zh="虽然{}，但是{}", en="Although {}, {}")


def draw_but(rng: Random) -> Sentence:
    """Draw a contrast: something is fine but too dear, or one person does and another does not."""
    if rng.random() < 0.4:
        thing, merit = draw_something(rng, [ADJECTIVE[zh] for zh in MERITS.split()])
        fault = ADJECTIVE[pick(rng, FAULTS.split())]
        if not NOUN[thing.head].among(fault.categories) or (merit.zh, fault.zh) in OPPOSITES:
            return draw_but(rng)
        it = Phrase("", "they" if thing.number == "p" else "it", thing.number, head=thing.head)
        facts = predicate(Clause(thing, IS), merit, DEGREES[0]), predicate(Clause(it, IS), fault, ("太", "too "))
        return sentence(*facts, zh="{}，但是{}", en="{}, but {}")
    clause = draw_event(rng, "ppfmm", negative=False)
    if rng.random() < 0.4:
        noun = draw_noun(rng, " ".join(STATES[0].categories))
        clause = Clause(clause.subject, LIKE, object=draw_thing(rng, noun, "bare"))
    one, other, mode = sentence(clause), draw_other(rng, clause.subject), clause.mode
    denial = "没有" if mode.after == "了" else mode.zh_negative if mode.zh else "不" + clause.verb.zh
    aux, _ = verb_group(clause.verb, mode, other.number, negative=True)
    source, target = f"{one.source[:-1]}，但是{other.zh}{denial}。", f"{one.target[:-1]}, but {other.en} {aux}."
    return Sentence(source, target, one.combinations | other.combinations)


def draw_thought(rng: Random) -> Clause:
    """Draw what somebody thinks, knows or hopes."""
    verb, asking = pick(rng, (THINK, THINK, KNOW, HOPE)), rng.random() < 0.2
    if verb is THINK:
        said = draw_comparison(rng) if rng.random() < 0.3 else draw_description(rng, asking=False)
    else:
        said = replace(draw_event(rng, "pph" if verb is KNOW else "f", pick(rng, PRONOUN + NAME)), time_first=False)
        said = replace(said, mode=MODES["future"]) if verb is HOPE else said
    thing = Phrase(chinese(said), english(said), combinations=said.combinations())
    negative = not asking and verb is not HOPE and not said.negative and rng.random() < 0.3
    holder = draw_person(rng, ASKED if asking else PRONOUN)
    return Clause(holder, verb, object=thing, negative=negative, question="吗" if asking else "")
