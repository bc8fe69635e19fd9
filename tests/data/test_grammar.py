"""The built-in corpus: its two spellings of a clause, its determinism, and what its splits hold out."""

import hashlib
import re
import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from modeling_vanilla.data.grammar import clause, corpus, vocabulary
from modeling_vanilla.data.grammar.clause import (
    ADJECTIVE,
    MODES,
    NOUN,
    Clause,
    Determiner,
    Phrase,
    Verb,
    chinese,
    english,
    noun_phrase,
    possessive,
    sentence,
)
from modeling_vanilla.data.grammar.corpus import built_in_splits, draw_sentence, generate_pairs, is_held_out
from modeling_vanilla.data.grammar.states import compared, predicate
from modeling_vanilla.data.grammar.vocabulary import (
    ANY,
    BARE,
    HOW,
    HOW_MANY,
    PLACE,
    SPOT,
    THAT,
    THE,
    THE_MANY,
    THESE,
    THIS,
    WHAT,
    WHERE,
    WHICH,
    WHO,
    WHY,
    A,
)

PERSON = {phrase.zh: phrase for phrase in (*vocabulary.PRONOUN, *vocabulary.NAME)}
ME, YOU, HE, SHE, THEY, TOM = (PERSON[zh] for zh in ("我", "你", "他", "她", "他们", "汤姆"))
TWO, THREE = Determiner("两", "two", True, True), Determiner("三", "three", True, True)
CAT, CHILDREN = noun_phrase(NOUN["猫"], THAT), noun_phrase(NOUN["孩子"], THE_MANY)
EAT, DRINK, BUY = Verb("吃", "eat"), Verb("喝", "drink"), Verb("买", "buy")
WRITE, WAIT, SEE = Verb("写", "write"), Verb("等", "wait for"), Verb("看见", "see")
LIKE, HAVE, GO, IS, EQUALS = (
    Verb("喜欢", "like"),
    Verb("有", "have"),
    Verb("去", "go"),
    Verb("", "be"),
    Verb("是", "be"),
)
SWIM, WORK = Verb("游泳", "swim", activity=True), Verb("工作", "work", activity=True)
SOCCER, CHINESE = Verb("踢", "play soccer", "足球", True), Verb("学", "learn Chinese", "中文", True)
RAIN = Verb("下雨", "rain", activity=True)
YESTERDAY, TOMORROW = Phrase("昨天", "yesterday"), Phrase("明天", "tomorrow")
MORNINGS = Phrase("每天早上", "every morning")


def noun(zh: str, determiner: Determiner = A, adjective: str = "") -> Phrase:
    return noun_phrase(NOUN[zh], determiner, ADJECTIVE[adjective] if adjective else None)


def mode(name: str) -> dict[str, clause.Mode]:
    return {"mode": MODES[name]}


TEA = noun("茶", BARE)
IN_BEIJING, TO_BEIJING, TO_SCHOOL = PLACE["北京"], Phrase("北京", "to Beijing"), Phrase("学校", "to school")

# A clause, its Chinese and its English, written by hand.
CLAUSES = {
    "first person present": (
        Clause(ME, DRINK, object=TEA, time=MORNINGS),
        "我每天早上喝茶。",
        "I drink tea every morning.",
    ),
    "third person s": (
        Clause(HE, DRINK, object=TEA, time=MORNINGS),
        "他每天早上喝茶。",
        "He drinks tea every morning.",
    ),
    "irregular plural subject, progressive": (
        Clause(CHILDREN, SOCCER, **mode("now"), place=PLACE["公园"]),
        "孩子们正在公园踢足球。",
        "The children are playing soccer in the park.",
    ),
    "irregular past, place and time at the end": (
        Clause(ME, BUY, **mode("past"), object=noun("书", THREE), place=PLACE["商店"], time=YESTERDAY),
        "我昨天在商店买了三本书。",
        "I bought three books at the store yesterday.",
    ),
    "irregular plural object": (
        Clause(CAT, SEE, **mode("past"), object=noun("老鼠", TWO)),
        "那只猫看见了两只老鼠。",
        "That cat saw two mice.",
    ),
    "built-in object before 了": (Clause(HE, SOCCER, **mode("past")), "他踢足球了。", "He played soccer."),
    "do-support, present": (
        Clause(HE, LIKE, object=noun("咖啡", BARE), negative=True),
        "他不喜欢咖啡。",
        "He doesn't like coffee.",
    ),
    "do-support, past": (
        Clause(THEY, GO, **mode("past"), object=TO_SCHOOL, time=YESTERDAY, negative=True),
        "他们昨天没去学校。",
        "They didn't go to school yesterday.",
    ),
    "what": (
        Clause(YOU, EAT, **mode("past"), object=WHAT, time=YESTERDAY),
        "你昨天吃了什么？",
        "What did you eat yesterday?",
    ),
    "who as the subject": (
        Clause(WHO, WRITE, **mode("past"), object=noun("信", THIS)),
        "谁写了这封信？",
        "Who wrote this letter?",
    ),
    "who as the object": (Clause(SHE, WAIT, **mode("now"), object=WHO), "她正在等谁？", "Who is she waiting for?"),
    "where": (
        Clause(YOU, CHINESE, **mode("want"), place=WHERE),
        "你想在哪里学中文？",
        "Where do you want to learn Chinese?",
    ),
    "why": (
        Clause(HE, GO, **mode("past"), object=TO_BEIJING, reason=WHY, negative=True),
        "他为什么没去北京？",
        "Why didn't he go to Beijing?",
    ),
    "how": (Clause(SHE, GO, object=TO_SCHOOL, manner=HOW), "她怎么去学校？", "How does she go to school?"),
    "how many": (Clause(TOM, HAVE, object=noun("猫", HOW_MANY)), "汤姆有几只猫？", "How many cats does Tom have?"),
    "which": (Clause(YOU, LIKE, object=noun("裙子", WHICH)), "你喜欢哪条裙子？", "Which skirt do you like?"),
    "A-not-A": (Clause(YOU, SWIM, **mode("skill"), question="不"), "你会不会游泳？", "Can you swim?"),
    "A-not-A with 有": (
        Clause(SHE, HAVE, object=noun("伞"), question="不"),
        "她有没有一把伞？",
        "Does she have an umbrella?",
    ),
    "have not": (Clause(ME, HAVE, object=noun("手机", ANY), negative=True), "我没有手机。", "I don't have any phones."),
    "object pronoun": (
        Clause(ME, WAIT, **mode("can"), object=HE, negative=True),
        "我不能等他。",
        "I can't wait for him.",
    ),
    "future, time first in Chinese": (
        Clause(ME, WAIT, **mode("future"), object=SHE, time=TOMORROW, time_first=True),
        "明天我会等她。",
        "I will wait for her tomorrow.",
    ),
    "going to": (
        Clause(TOM, EAT, **mode("plan"), object=noun("鸡蛋"), time=TOMORROW),
        "汤姆明天要吃一个鸡蛋。",
        "Tom is going to eat an egg tomorrow.",
    ),
    "have to": (Clause(HE, WORK, **mode("must")), "他必须工作。", "He has to work."),
    "not have to": (Clause(HE, WORK, **mode("must"), negative=True), "他不用工作。", "He doesn't have to work."),
    "never": (
        Clause(ME, GO, **mode("experience"), object=TO_BEIJING, negative=True),
        "我没去过北京。",
        "I have never been to Beijing.",
    ),
    "ever": (
        Clause(YOU, EAT, **mode("experience"), object=noun("饺子", BARE), question="吗"),
        "你吃过饺子吗？",
        "Have you ever eaten dumplings?",
    ),
    "mass noun in units, adjective": (
        Clause(SHE, DRINK, **mode("past"), object=noun("茶", THREE, "热")),
        "她喝了三杯热茶。",
        "She drank three cups of hot tea.",
    ),
    "an before an adjective": (
        Clause(ME, BUY, **mode("past"), object=noun("书", A, "有意思")),
        "我买了一本有意思的书。",
        "I bought an interesting book.",
    ),
    "a before useful": (
        Clause(ME, HAVE, object=noun("词典", A, "有用")),
        "我有一本有用的词典。",
        "I have a useful dictionary.",
    ),
    "two objects": (
        Clause(TOM, Verb("给", "give"), **mode("past"), recipient=ME, object=noun("刀", TWO)),
        "汤姆给了我两把刀。",
        "Tom gave me two knives.",
    ),
    "object before the verb": (
        Clause(HE, Verb("放在", "put"), **mode("past"), object=noun("钥匙", THE), goal=SPOT["桌子上"]),
        "他把钥匙放在桌子上了。",
        "He put the key on the table.",
    ),
    "there are": (
        Clause(
            Phrase("桌子上", "there", "p"), Verb("有", "be"), object=noun("杯子", TWO), place=Phrase("", "on the table")
        ),
        "桌子上有两个杯子。",
        "There are two cups on the table.",
    ),
    "adjective predicate": (
        predicate(Clause(noun("花", THESE), IS), ADJECTIVE["漂亮"], ("很", "")),
        "这些花很漂亮。",
        "These flowers are beautiful.",
    ),
    "negative predicate": (
        predicate(Clause(ME, IS, negative=True), Phrase("饿", "hungry"), ("", "")),
        "我不饿。",
        "I am not hungry.",
    ),
    "negative predicate that begins with 有": (
        predicate(Clause(noun("书", THIS), IS, negative=True), ADJECTIVE["有意思"], ("", "")),
        "这本书没有意思。",
        "This book isn't interesting.",
    ),
    "past state": (
        predicate(Clause(THEY, IS, **mode("state_past"), time=YESTERDAY), Phrase("累", "tired"), ("很", "")),
        "他们昨天很累。",
        "They were tired yesterday.",
    ),
    "A-not-A predicate": (
        predicate(Clause(CAT, IS, question="不"), ADJECTIVE["大"], ("", "")),
        "那只猫大不大？",
        "Is that cat big?",
    ),
    "comparative": (
        compared(noun("书", THIS), ADJECTIVE["贵"], Phrase("那本", "that one"), step=("得多", "much ")),
        "这本书比那本贵得多。",
        "This book is much more expensive than that one.",
    ),
    "comparative with a pronoun": (compared(TOM, ADJECTIVE["高"], ME), "汤姆比我高。", "Tom is taller than me."),
    "not as": (compared(SHE, ADJECTIVE["聪明"], HE, negative=True), "她没有他聪明。", "She isn't as smart as him."),
    "noun predicate": (Clause(SHE, EQUALS, object=noun("工程师")), "她是一位工程师。", "She is an engineer."),
    "plural owner": (
        Clause(Phrase("这", "this"), EQUALS, object=noun("书", possessive(noun("老师", THE_MANY)))),
        "这是老师们的书。",
        "This is the teachers' book.",
    ),
    "owner with an irregular plural": (
        Clause(Phrase("那", "those", "p"), EQUALS, object=noun("鞋", possessive(CHILDREN))),
        "那是孩子们的鞋。",
        "Those are the children's shoes.",
    ),
    "own family without 的": (
        Clause(noun("妈妈", possessive(ME, near=True)), LIKE, object=noun("狗", BARE)),
        "我妈妈喜欢狗。",
        "My mother likes dogs.",
    ),
}


@pytest.mark.parametrize(("clause", "source", "target"), CLAUSES.values(), ids=CLAUSES)
def test_a_clause_reads_well_in_both_languages(clause: Clause, source: str, target: str) -> None:
    spelled = sentence(clause)
    assert (spelled.source, spelled.target) == (source, target)


JOINED = {
    "because": (
        (
            Clause(Phrase("", "it"), RAIN, **mode("past"), time=YESTERDAY),
            Clause(ME, GO, **mode("past"), object=TO_SCHOOL, negative=True),
        ),
        ("因为{}，所以{}", "Because {}, {}"),
        "因为昨天下雨了，所以我没去学校。",
        "Because it rained yesterday, I didn't go to school.",
    ),
    "if, with the present in the condition": (
        (Clause(Phrase("", "it"), RAIN, time=TOMORROW), Clause(TOM, SWIM, **mode("future"), negative=True, link="就")),
        ("如果{}，{}", "If {}, {}"),
        "如果明天下雨，汤姆就不会游泳。",
        "If it rains tomorrow, Tom won't swim.",
    ),
    "but, as a question": (
        (Clause(SHE, LIKE, object=TEA), Clause(HE, LIKE, object=TEA, question="吗")),
        ("{}，但是{}", "{}, but {}"),
        "她喜欢茶，但是他喜欢茶吗？",
        "She likes tea, but does he like tea?",
    ),
}


@pytest.mark.parametrize(("clauses", "join", "source", "target"), JOINED.values(), ids=JOINED)
def test_two_clauses_join_in_both_languages(
    clauses: tuple[Clause, Clause], join: tuple[str, str], source: str, target: str
) -> None:
    spelled = sentence(*clauses, zh=join[0], en=join[1])
    assert (spelled.source, spelled.target) == (source, target)


@pytest.mark.parametrize(
    ("verb", "third", "past", "participle", "gerund"),
    [
        ("watch", "watches", "watched", "watched", "watching"),
        ("study hard", "studies hard", "studied hard", "studied hard", "studying hard"),
        ("play soccer", "plays soccer", "played soccer", "played soccer", "playing soccer"),
        ("write", "writes", "wrote", "written", "writing"),
        ("dance", "dances", "danced", "danced", "dancing"),
        ("swim", "swims", "swam", "swum", "swimming"),
        ("plan to go", "plans to go", "planned to go", "planned to go", "planning to go"),
        ("see", "sees", "saw", "seen", "seeing"),
        ("go", "goes", "went", "been", "going"),
        ("have to", "has to", "had to", "had to", "having to"),
    ],
)
def test_a_verb_is_conjugated(verb: str, third: str, past: str, participle: str, gerund: str) -> None:
    forms = {"base": verb, "third": third, "past": past, "participle": participle, "gerund": gerund}
    assert clause.verb_forms(verb) == forms


def test_the_place_of_a_progressive_needs_no_second_zai() -> None:
    clause = Clause(ME, SWIM, MODES["now"], place=PLACE["海边"])
    assert (chinese(clause), english(clause)) == ("我正在海边游泳", "I am swimming at the beach")


# ---- The list of pairs ----


def test_no_source_comes_twice() -> None:
    sources = [source for source, _ in generate_pairs(5000, seed=3)]
    assert len(set(sources)) == 5000


def test_a_source_has_one_translation() -> None:
    rng, translation = Random(5), {}
    for _ in range(30_000):
        drawn = draw_sentence(rng)
        assert translation.setdefault(drawn.source, drawn.target) == drawn.target


def test_a_longer_list_starts_with_the_shorter_one() -> None:
    assert generate_pairs(1000, seed=2)[:300] == generate_pairs(300, seed=2)


def test_another_seed_gives_other_pairs() -> None:
    assert generate_pairs(100, seed=0) != generate_pairs(100, seed=1)


def test_nothing_is_a_valid_count() -> None:
    assert generate_pairs(0) == []


def test_sentences_are_punctuated_in_their_own_script() -> None:
    for source, target in generate_pairs(5000):
        assert re.fullmatch(r"[\u4e00-\u9fff]+(，[\u4e00-\u9fff]+)?[。？]", source)
        assert re.fullmatch(r"[A-Z][A-Za-z']*(,? [A-Za-z']+)+[.?]", target)
        assert (source[-1] == "？") == (target[-1] == "?")


@pytest.mark.slow
def test_the_hash_seed_of_python_changes_nothing() -> None:
    code = (
        "import hashlib; from modeling_vanilla.data import grammar; "
        "made = grammar.generate_pairs(300, 4), grammar.built_in_splits(300, 30, 30, 4); "
        "print(hashlib.sha256(repr(made).encode()).hexdigest())"
    )
    made = generate_pairs(300, 4), built_in_splits(300, 30, 30, 4)
    digests = {hashlib.sha256(repr(made).encode()).hexdigest()}
    for hash_seed in ("0", "77"):
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        digests.add(run.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize("count", [-1, corpus.MAX_PAIRS + 1])
def test_an_impossible_count_is_refused_with_the_limit(count: int) -> None:
    with pytest.raises(ValueError, match=rf"count is {count}, .*0 to {corpus.MAX_PAIRS}.*ask for"):
        generate_pairs(count)


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_an_impossible_split_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1, "):
        built_in_splits(**{name: -1})
    with pytest.raises(ValueError, match=rf"{name} is {corpus.MAX_PAIRS + 1}, .*ask for"):
        built_in_splits(**{name: corpus.MAX_PAIRS + 1})


# ---- The splits ----


@pytest.fixture(scope="module")
def splits() -> dict[str, list[tuple[str, str]]]:
    return built_in_splits()


@pytest.fixture(scope="module")
def combinations(splits: dict[str, list[tuple[str, str]]]) -> dict[str, frozenset[tuple[str, str]]]:
    """The combinations of every sentence in the splits, from drawing them once more."""
    wanted = {source for pairs in splits.values() for source, _ in pairs}
    rng, found = Random(0), {}
    while len(found) < len(wanted):
        drawn = draw_sentence(rng)
        if drawn.source in wanted:
            found[drawn.source] = drawn.combinations
    return found


def test_splits_have_the_sizes_asked_for(splits) -> None:
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 20_000, "validation": 500, "test": 500}


def test_no_sentence_is_in_two_splits_in_either_language(splits) -> None:
    for side in (0, 1):
        train, validation, test = ({pair[side] for pair in pairs} for pairs in splits.values())
        assert train.isdisjoint(validation | test)
        assert validation.isdisjoint(test)


def test_smaller_splits_start_the_larger_ones(splits) -> None:
    for name, pairs in built_in_splits(300, 20, 10).items():
        assert pairs == splits[name][: len(pairs)]
        assert len(pairs) in (300, 20, 10)


def test_training_makes_no_held_out_combination(splits, combinations) -> None:
    assert not any(is_held_out(pair) for source, _ in splits["train"] for pair in combinations[source])


@pytest.mark.parametrize("name", ["validation", "test"])
def test_every_held_out_sentence_makes_a_held_out_combination(splits, combinations, name) -> None:
    assert all(any(map(is_held_out, combinations[source])) for source, _ in splits[name])


def test_held_out_verbs_and_objects_never_stand_together_in_the_training_text(splits) -> None:
    """Read off the text, without asking the grammar which combinations it made."""
    held_out = [
        f"{frame.verb.zh}[了过]?[一两三四五六七八九十这那]{noun.measure}{noun.zh}"
        for frame in vocabulary.TRANSITIVES
        for noun in NOUN.values()
        if noun.category in frame.categories and is_held_out((frame.verb.zh, noun.zh))
    ]
    together = re.compile("|".join(held_out))
    assert len(held_out) > 20
    assert not [source for source, _ in splits["train"] if together.search(source)]
    assert len([source for source, _ in splits["test"] if together.search(source)]) > 20


def test_held_out_splits_hold_many_different_new_combinations(splits, combinations) -> None:
    new = {pair for source, _ in splits["test"] for pair in combinations[source] if is_held_out(pair)}
    assert len(new) > 100


@pytest.mark.parametrize(
    ("side", "tokenize"),
    [(0, list), (1, lambda text: re.findall(r"[\w']+|[.,?]", text.lower()))],
    ids=["Chinese characters", "English words"],
)
def test_every_held_out_token_is_frequent_in_training(splits, side, tokenize) -> None:
    seen = Counter(token for pair in splits["train"] for token in tokenize(pair[side]))
    held_out = {token for name in ("validation", "test") for pair in splits[name] for token in tokenize(pair[side])}
    assert {token: seen[token] for token in held_out if seen[token] < 20} == {}
