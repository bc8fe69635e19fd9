"""One abstract clause, spelled out in Chinese and in English."""

from dataclasses import dataclass
from functools import cache

from modeling_vanilla.data.grammar.lexicon import ADJECTIVES, DOUBLED, IRREGULAR, NOUNS, entries, rows

# ---- Phrases -------------------------------------------------------------------------------------------------------
Combination = tuple[str, str]  # two Chinese words in a relation, such as a verb and its object


@dataclass(frozen=True)
class Phrase:
    """A constituent in both languages; `object_en` and `owner_en` are "him" and "his" where they differ from `en`."""

    zh: str
    en: str
    number: str = "s"
    object_en: str = ""
    owner_en: str = ""
    head: str = ""
    asks: bool = False
    combinations: frozenset[Combination] = frozenset()


@dataclass(frozen=True)
class Noun:
    """A noun; `unit` ("cup") makes it a mass noun, which may still be plural as shoes are."""

    category: str
    zh: str
    measure: str
    en: str
    plural: str
    unit: str

    def among(self, categories: str) -> bool:
        """Tell whether its category is one of a list such as "fruit dish"."""
        return self.category in categories.split()


@dataclass(frozen=True)
class Adjective:
    """A row of `ADJECTIVES`."""

    zh: str
    en: str
    comparative: str
    categories: str
    before_noun: str


@dataclass(frozen=True)
class Determiner:
    """What stands before a noun: `measured` asks for a measure word, `suffix` is the plural 们."""

    zh: str
    en: str
    plural: bool = False
    measured: bool = False
    suffix: str = ""
    asks: bool = False


def plural(word: str) -> str:
    """Return the regular English plural of `word`, which is also the third person of a verb."""
    if word.endswith(("s", "sh", "ch", "x")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _noun(category: str, zh: str, measure: str, en: str) -> Noun:
    unit, _, counted = en.rpartition(" of ")
    singular, _, irregular = counted.partition("/")
    return Noun(category, zh, measure, singular, irregular or plural(singular), unit)


NOUN = {row[0]: _noun(category, *row) for category, text in NOUNS.items() for row in entries(text, 3)}
NOUNS_OF = {category: [noun for noun in NOUN.values() if noun.category == category] for category in NOUNS}
ADJECTIVE = {row[0]: Adjective(*row) for row in rows(ADJECTIVES)}


def noun_phrase(noun: Noun, determiner: Determiner, adjective: Adjective | None = None) -> Phrase:
    """Join determiner, adjective and noun in both languages.

    Args:
        noun: the head.
        determiner: what stands before it; a numeral, 这 and 那 bring the measure word in.
        adjective: one that has a form before nouns.

    Returns:
        The phrase with its agreement; "a" has become "an" where the next word asks for it.
    """
    before, described = (adjective.before_noun, [adjective.en]) if adjective else ("", [])
    zh = determiner.zh + (noun.measure if determiner.measured else "") + before + noun.zh + determiner.suffix
    many = determiner.plural
    if noun.unit and determiner.measured:
        words = [plural(noun.unit) if many else noun.unit, "of", *described, noun.en]
    elif noun.unit:
        words, many = [*described, noun.en], noun.en.endswith("s")  # noodles and shoes stay plural, tea singular
    else:
        words = [*described, noun.plural if many else noun.en]
    article = "an" if words[0][0] in "aeiou" and not words[0].startswith("use") else "a"
    words.insert(0, article if determiner.en == "a" else determiner.en)
    pairs = frozenset({(adjective.zh, noun.zh)} if adjective else ())
    en = " ".join(words).strip()
    return Phrase(zh, en, "p" if many else "s", head=noun.zh, asks=determiner.asks, combinations=pairs)


def possessive(owner: Phrase, near: bool = False, many: bool = False) -> Determiner:
    """Make a determiner of an owner.

    Args:
        owner: whose it is.
        near: leave 的 out after a singular pronoun, as in 我妈妈.
        many: several are owned, which 们 shows; for people only.

    Returns:
        The determiner "my", "Tom's" or "the students'".
    """
    zh = owner.zh if near and owner.zh in ("我", "你", "他", "她") else owner.zh + "的"
    suffix = "'" if owner.number == "p" and owner.en.endswith("s") else "'s"
    return Determiner(zh, owner.owner_en or owner.en + suffix, many, suffix="们" if many else "")


# ---- Clauses -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Verb:
    """A verb; `inner` is the Chinese object that belongs to it (电视 in 看电视), an `activity` takes no other."""

    zh: str
    en: str
    inner: str = ""
    activity: bool = False


@dataclass(frozen=True)
class Mode:
    """Tense, aspect or modality: Chinese before and after the verb, the English auxiliary and a "want to" around it."""

    zh: str
    zh_negative: str
    after: str = ""
    after_negative: str = ""
    aux: str = "do"
    light: str = ""


MODES = {
    "habit": Mode("", "不"),
    "past": Mode("", "没", "了", aux="did"),
    "relative": Mode("", "没", aux="did"),  # 我买的书: 的 takes the place of 了
    "state_past": Mode("", "不", aux="did"),  # 昨天他很累: a past state has no 了
    "experience": Mode("", "没", "过", "过", aux="have"),
    "future": Mode("会", "不会", aux="will"),
    "plan": Mode("要", "不会", aux="be", light="go to"),
    "now": Mode("正在", "没在", aux="be"),
    "want": Mode("想", "不想", light="want to"),
    "like": Mode("喜欢", "不喜欢", light="like to"),
    "intend": Mode("打算", "不打算", light="plan to"),
    "need": Mode("需要", "不需要", light="need to"),
    "must": Mode("必须", "不用", light="have to"),
    "can": Mode("能", "不能", aux="can"),
    "skill": Mode("会", "不会", aux="can"),
    "should": Mode("应该", "不应该", aux="should"),
    "than": Mode("比", "没有"),  # taller than, not as tall as
}


@dataclass(frozen=True)
class Clause:
    """One clause, before it is spelled out in either language.

    Args:
        subject: who or what.
        verb: what is done.
        mode: tense, aspect or modality, one of `MODES`.
        object: what it is done to, or the predicate of "be".
        recipient: to whom something is given.
        goal: where the object ends up; Chinese then puts the object before the verb, with 把.
        place: where it happens; Chinese adds 在.
        manner: with whom, for whom or by what means.
        time: when.
        reason: "why".
        adverb: how often.
        negative: negate it.
        question: "吗" or "不" (A-not-A) for a yes or no question. A phrase that `asks` makes a question by itself.
        link: 就, after the subject of a consequence.
        time_first: put the Chinese time before the subject; the English is the same.
    """

    subject: Phrase
    verb: Verb
    mode: Mode = MODES["habit"]
    object: Phrase | None = None
    recipient: Phrase | None = None
    goal: Phrase | None = None
    place: Phrase | None = None
    manner: Phrase | None = None
    time: Phrase | None = None
    reason: Phrase | None = None
    adverb: Phrase | None = None
    negative: bool = False
    question: str = ""
    link: str = ""
    time_first: bool = False

    def phrases(self) -> list[Phrase]:
        """Return the phrases that are there: the subject, then the others in English order."""
        slots = (self.reason, self.recipient, self.object, self.goal, self.manner, self.place, self.time)
        return [self.subject, *(phrase for phrase in slots if phrase)]

    def combinations(self) -> frozenset[Combination]:
        """Return the pairs of Chinese words that the clause puts together."""
        verb = self.verb.zh + self.verb.inner
        own = {(verb, phrase.head) for phrase in (self.object, self.place) if phrase and phrase.head}
        return frozenset(own).union(*(phrase.combinations for phrase in self.phrases()))


def chinese(clause: Clause) -> str:
    """Spell out a clause in Chinese, without final punctuation: time, adverb, place and manner before the verb."""

    def zh(phrase: Phrase | None) -> str:
        return phrase.zh if phrase else ""

    mode, verb, action = clause.mode, clause.verb, clause.verb.zh
    negation = "没" if (action + zh(clause.object)).startswith("有") else "不"  # 没有, and 没有意思 too
    marker = mode.zh_negative if clause.negative else mode.zh
    if marker == "不":
        marker = negation
    elif clause.question == "不" and marker:
        marker = f"{marker[0]}不{marker}"
    if clause.question == "不" and action and not marker:
        action = action[0] + negation + action
    after = mode.after_negative if clause.negative else mode.after
    place = zh(clause.place)
    if place and marker != "正在":  # 正在 already holds the 在 of the place
        place = "在" + place
    opening = [zh(clause.time), zh(clause.subject)][:: 1 if clause.time_first else -1]
    parts = [*opening, zh(clause.reason), clause.link, zh(clause.adverb), marker, place, zh(clause.manner)]
    if clause.goal:
        parts += ["把", zh(clause.object), action, zh(clause.goal), after]
    elif after == "了" and verb.activity:
        parts += [action, verb.inner, after]
    else:
        parts += [action, after, verb.inner, zh(clause.recipient), zh(clause.object)]
    return "".join(parts) + ("吗" if clause.question == "吗" else "")


BE = {"do": {"1": "am", "s": "is", "p": "are"}, "did": {"1": "was", "s": "was", "p": "were"}}
NEGATED = {"am": "am not", "will": "won't", "can": "can't"}


@cache
def verb_forms(en: str) -> dict[str, str]:
    """Return the "base", "third", "past", "participle" and "gerund" of an English verb such as "look for"."""
    word, space, rest = en.partition(" ")
    stem = word + word[-1] if word in DOUBLED else word.removesuffix("e") if word not in ("be", "see") else word
    past = word[:-1] + "ied" if word.endswith("y") and word[-2] not in "aeiou" else stem + "ed"
    past, participle = IRREGULAR.get(word, f"{past} {past}").split()
    third = {"have": "has", "go": "goes"}.get(word) or plural(word)
    forms = {"base": word, "third": third, "past": past, "participle": participle, "gerund": stem + "ing"}
    return {name: form + space + rest for name, form in forms.items()}


def verb_group(verb: Verb, mode: Mode, number: str, negative: bool = False, inverted: bool = False) -> tuple[str, str]:
    """Conjugate an English verb.

    Args:
        verb: what is done.
        mode: tense, aspect or modality.
        number: agreement of the subject, "1", "s" or "p".
        negative: negate it.
        inverted: an auxiliary has to stand before the subject.

    Returns:
        The auxiliary, contracted with "not", or "" where there is none; and the rest of the verb.
    """
    forms = verb_forms(f"{mode.light} {verb.en}".strip())
    if mode.aux == "have":
        return "has" if number == "s" else "have", ("never " if negative else "") + forms["participle"]
    if forms["base"] == "be" and mode.aux in BE:
        aux, main = BE[mode.aux][number], ""
    elif mode.aux == "be":
        aux, main = BE["do"][number], forms["gerund"]
    elif mode.aux not in BE:
        aux, main = mode.aux, forms["base"]
    elif negative or inverted:
        aux, main = "did" if mode.aux == "did" else "does" if number == "s" else "do", forms["base"]
    else:
        aux, main = "", forms["past" if mode.aux == "did" else "third" if number == "s" else "base"]
    return NEGATED.get(aux, aux + "n't") if negative else aux, main


def complements(clause: Clause) -> str:
    """Spell out what follows the English verb: objects, then goal, manner, place and time."""
    slots = [phrase for phrase in clause.phrases()[1:] if not phrase.asks]
    return " ".join(phrase.object_en or phrase.en for phrase in slots)


def english(clause: Clause) -> str:
    """Spell out a clause in English, without capital and final punctuation; what asks comes first."""
    subject = clause.subject
    fronted = next((phrase.en for phrase in clause.phrases()[1:] if phrase.asks), "")
    inverted = bool(clause.question or fronted)
    aux, main = verb_group(clause.verb, clause.mode, subject.number, clause.negative, inverted)
    adverb = clause.adverb.en if clause.adverb else "ever" if clause.question and clause.mode.aux == "have" else ""
    opening = (aux, subject.en) if inverted else (subject.en, aux)
    return " ".join(word for word in (fronted, *opening, adverb, main, complements(clause)) if word)


@dataclass(frozen=True)
class Sentence:
    """A finished pair and the combinations of words in it."""

    source: str
    target: str
    combinations: frozenset[Combination]


def sentence(*clauses: Clause, zh: str = "{}", en: str = "{}") -> Sentence:
    """Finish one clause, or join two.

    Args:
        clauses: one or two clauses; the sentence is a question if the last one is.
        zh: how the Chinese clauses are joined, with a "{}" for each.
        en: the same for English.

    Returns:
        The sentence with capital letter and final punctuation.
    """
    asks = bool(clauses[-1].question) or any(phrase.asks for phrase in clauses[-1].phrases())
    target = en.format(*map(english, clauses))
    pairs: frozenset[Combination] = frozenset().union(*(clause.combinations() for clause in clauses))
    source = zh.format(*map(chinese, clauses)) + ("？" if asks else "。")
    return Sentence(source, target[0].upper() + target[1:] + ("?" if asks else "."), pairs)
