"""Clauses drawn at random: what happens, and questions about it."""

from dataclasses import replace
from random import Random

from modeling_vanilla.data.grammar.clause import MODES, NOUN, Clause, Phrase, chinese, complements, noun_phrase
from modeling_vanilla.data.grammar.lexicon import FOOD, PEOPLE
from modeling_vanilla.data.grammar.vocabulary import (
    ACTIVITIES,
    ADVERB,
    ASKED,
    COME,
    DESTINATION,
    FAR_MEANS,
    FRAMES_AT,
    GIVES,
    GO,
    HOW,
    HOW_MANY,
    IS,
    MEANS,
    NOBODY,
    PUT,
    SPOT,
    TAGS,
    THE,
    TRANSITIVES,
    WHAT,
    WHEN,
    WHERE,
    WHICH,
    WHO,
    WHY,
    Frame,
    draw_noun,
    draw_other,
    draw_person,
    draw_thing,
    draw_time,
    pick,
)

MODE_OF = {"h": "habit", "p": "past", "e": "experience", "n": "now", "f": "future"}
MODALS = ("want", "want", "want", "can", "can", "should", "should", "must", "need", "intend")


def draw_circumstances(rng: Random, subject: Phrase, letter: str, timed: bool = True, negative: bool = False) -> Clause:
    """Draw mode, time and adverb of a clause whose verb is still to come."""
    name, chance, time, adverb = MODE_OF.get(letter) or pick(rng, MODALS), rng.random(), None, None
    if letter == "h" and not negative:  # with neither time nor adverb, it would be a bare fact
        time, adverb = (draw_time(rng, "habit"), None) if timed and chance < 0.65 else (None, pick(rng, ADVERB))
    elif timed and (letter == "f" or (letter == "p" and chance < 0.75) or (letter == "m" and chance < 0.35)):
        time = draw_time(rng, "past" if letter == "p" else "future")
        name = "plan" if letter == "f" and not negative and chance < 0.3 else name
    first = time is not None and rng.random() < 0.2
    return Clause(subject, IS, MODES[name], time=time, adverb=adverb, negative=negative, time_first=first)


def draw_place(rng: Random, frame: Frame, clause: Clause) -> Phrase | None:
    """Draw where it happens, if anywhere in particular."""
    fits = frame.places and clause.mode.after != "过" and not (clause.negative and clause.mode.zh == "正在")
    return pick(rng, frame.places) if fits and rng.random() < 0.35 else None


def draw_adjunct(rng: Random, clause: Clause, zh: str, en: str) -> Phrase:
    """Draw with whom or for whom, from the words around the person."""
    other = draw_other(rng, clause.subject)
    return Phrase(zh.format(other.zh), f"{en} {other.object_en or other.en}", combinations=other.combinations)


def draw_transitive(rng: Random, clause: Clause, frame: Frame) -> Clause:
    """Add a verb and its object, often a place, at times for whom."""
    verb, noun, manner = frame.verb, draw_noun(rng, " ".join(frame.categories)), None
    definite = verb.zh in ("找", "打开", "擦", "修")  # a bare noun after these would mean "the"
    if clause.negative or clause.mode.after == "过":
        kinds = ["this", "own"] if definite else ["this", "own", "bare", "bare"]
    elif clause.mode is MODES["habit"]:
        kinds = ["number", "some", "bare"] if noun.among(f"{FOOD} text letter") else ["own", "bare"]
        kinds = ["bare"] if noun.among("show wild flower tree") else kinds
    else:
        kinds = ["number", "number", "number", "this", *([] if definite else ["some", "bare"])]
        kinds = ["this", "own"] if verb.zh == "擦" else kinds if verb.zh == "买" else [*kinds, "own"]
    if noun.among(PEOPLE):
        thing = draw_other(rng, clause.subject, stranger=not clause.negative)
    else:
        thing = draw_thing(rng, noun, *kinds)
    if verb.zh in ("买", "做", "洗", "擦", "修", "画") and rng.random() < 0.2:
        manner = draw_adjunct(rng, clause, "给{}", "for")
    return replace(clause, verb=verb, object=thing, manner=manner, place=draw_place(rng, frame, clause))


def draw_activity(rng: Random, clause: Clause, frame: Frame) -> Clause:
    """Add a verb that needs no object, at times with whom; "can" and "want" turn into a skill or a liking."""
    mode, chance = clause.mode, rng.random()
    if mode in (MODES["can"], MODES["want"]) and clause.time is None and chance < 0.7:
        mode = MODES["skill" if "s" in frame.modes and chance < 0.4 else "like"]
    if mode is MODES["skill"]:
        return replace(clause, verb=frame.verb, mode=mode)
    joint = rng.random() < 0.15 and frame.verb.zh != "睡觉"
    manner = draw_adjunct(rng, clause, "和{}一起", "with") if joint else None
    return replace(clause, verb=frame.verb, mode=mode, manner=manner, place=draw_place(rng, frame, clause))


def draw_motion(rng: Random, clause: Clause) -> Clause:
    """Add going or coming somewhere, by some means or for some purpose."""
    name = pick(rng, [zh for zh in DESTINATION if clause.mode.after != "过" or "city" in TAGS[zh]])
    there, verb, chance, manner = DESTINATION[name], pick(rng, (GO, GO, COME)), rng.random(), None
    if clause.mode.after == "过":
        return replace(clause, verb=GO, object=there)
    if chance < 0.4 and name[-1] not in "里上":  # nobody takes a bus to the classroom
        means = pick(rng, FAR_MEANS if "city" in TAGS[name] else MEANS)
        manner = replace(means, combinations=frozenset({(means.zh, there.zh)}))
    elif chance < 0.8 and not clause.mode.after and FRAMES_AT[name]:
        frame = pick(rng, FRAMES_AT[name])
        aim = (draw_activity if frame.verb.activity else draw_transitive)(rng, clause, frame)
        aim = Clause(NOBODY, aim.verb, object=aim.object)
        en = f"{there.en} to {aim.verb.en} {complements(aim)}".strip()
        there = Phrase(there.zh + chinese(aim), en, combinations=aim.combinations())
    return replace(clause, verb=verb, object=there, manner=manner)


def draw_giving(rng: Random, clause: Clause) -> Clause:
    """Add something and who gets it."""
    frame = pick(rng, GIVES)
    kinds = ("this",) if clause.negative else ("number", "number", "this", "own")
    thing = draw_thing(rng, draw_noun(rng, " ".join(frame.categories)), *kinds)
    return replace(clause, verb=frame.verb, object=thing, recipient=draw_other(rng, clause.subject))


def draw_putting(rng: Random, clause: Clause) -> Clause:
    """Add something that is put somewhere, which Chinese says with 把."""
    noun = draw_noun(rng, "text clothes device thing dish drink")
    thing = noun_phrase(noun, THE) if rng.random() < 0.3 else draw_thing(rng, noun, "this", "own")
    small = ("桌子上", "椅子下面", "床上", "床下面", "沙发上", "盒子里", "书包里", "门后面")
    goal = SPOT[pick(rng, ("桌子上", "冰箱里") if noun.among(FOOD) else small)]
    return replace(clause, verb=PUT, object=thing, goal=goal)


def draw_event(
    rng: Random,
    letters: str = "hhhhhhppppeennnfmm",
    subject: Phrase | None = None,
    timed: bool = True,
    negative: bool | None = None,
) -> Clause:
    """Draw somebody doing something, in a mode of one of the letters; what is None is drawn as well."""
    letter, chance = pick(rng, letters), rng.random()
    denied = rng.random() < 0.18 if negative is None else negative
    clause = draw_circumstances(rng, subject or draw_person(rng), letter, timed, denied)
    if chance < 0.2 and letter in "pfm":
        return (draw_giving if chance < 0.1 else draw_putting)(rng, clause)
    if chance < (0.24 if letter == "h" else 0.3) and letter != "n":
        return draw_motion(rng, clause)
    add, frames = (draw_activity, ACTIVITIES) if chance > 0.64 else (draw_transitive, TRANSITIVES)
    return add(rng, clause, pick(rng, [frame for frame in frames if letter in frame.modes]))


def draw_question(rng: Random) -> Clause:
    """Draw an event and ask for one of its parts, or whether it is so."""
    clause = draw_event(rng, subject=draw_person(rng, ASKED), negative=False)
    clause, mode, thing = replace(clause, adverb=clause.adverb and ADVERB[0]), clause.mode, clause.object
    forms: list[dict[str, object]] = [{"question": "吗"}, {"question": "吗"}, {"subject": WHO, "time_first": False}]
    if mode.zh and mode.zh not in ("正在", "必须"):
        forms.append({"question": "不"})
    if mode.aux != "have" and clause.verb.zh != "看见":
        forms.append({"reason": WHY})
    if thing and thing.head and not clause.goal and mode.aux != "have":
        noun = NOUN[thing.head]
        forms.append({"object": WHO if noun.among(PEOPLE) else WHAT})
        if not noun.among(PEOPLE) and mode.zh != "正在":
            forms.append({"object": noun_phrase(noun, pick(rng, (WHICH, HOW_MANY, HOW_MANY)))})
    if clause.place and mode.aux != "did":  # for a past place, Chinese would need 是 ... 的
        forms.append({"place": WHERE})
    if clause.verb in (GO, COME) and clause.manner and mode.aux != "did":
        forms += [{"manner": HOW}] * 3
    if mode in (MODES["future"], MODES["habit"]):
        forms.append({"time": WHEN, "time_first": False, "adverb": None})
    return replace(clause, **pick(rng, forms))  # type: ignore[arg-type]
