"""Named measures, the evaluate library's modules, and comparisons of systems."""

import random

import numpy as np
import pytest
import sacrebleu
from sacremoses import MosesTokenizer

from modeling_vanilla.evaluation import compare_systems, corpus_scores, measure
from modeling_vanilla.evaluation.modules import TranslationMetric

HYPOTHESES = ["Der Mann las ein Buch .", "Ein Hund läuft heute im Park .", "Sie singt ."] * 3
REFERENCES = ["Der Mann las das Buch .", "Ein Hund läuft im Park .", "Sie singt laut ."] * 3


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("bleu", {"tokenize": "intl"}, lambda h, r: sacrebleu.corpus_bleu(h, [r], tokenize="intl")),
        ("bleu", {"lowercase": True}, lambda h, r: sacrebleu.corpus_bleu(h, [r], lowercase=True)),
        ("chrf", {}, lambda h, r: sacrebleu.corpus_chrf(h, [r])),
        ("ter", {}, lambda h, r: sacrebleu.corpus_ter(h, [r], case_sensitive=True)),
        ("bleu_tok_lc", {}, lambda h, r: sacrebleu.corpus_bleu(h, [r], tokenize="none", lowercase=True, force=True)),
    ],
)
def test_modules_give_sacrebleus_figures(name, options, expected):
    found = TranslationMetric(name).compute(predictions=HYPOTHESES, references=REFERENCES, bootstrap=50, **options)
    assert found[name] == pytest.approx(expected(HYPOTHESES, REFERENCES).score)
    assert found["interval"] > 0
    assert "version:" in found["signature"]
    assert "bs:50" in found["signature"]


def test_modules_collect_batches():
    module = TranslationMetric("bleu")
    for hypothesis, reference in zip(HYPOTHESES, REFERENCES, strict=True):
        module.add(prediction=hypothesis, reference=reference)
    assert module.compute()["bleu"] == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)


def test_an_unknown_module_is_refused():
    with pytest.raises(ValueError, match="'blue' is unknown"):
        TranslationMetric("blue")


def test_compounds_are_split_as_in_the_paper():
    """By hand: tokenise, then (\\S)-(\\S) becomes three tokens, then BLEU of tokens."""
    hypotheses, references = (
        ["Ein Rot-Grün-Test, kurz.", "Die Auto-Bahn"],
        ["Ein Rot-Blau-Test, kurz.", "Die Auto-Bahn"],
    )
    tokenizer = MosesTokenizer(lang="de")

    def split(text: str) -> str:
        return tokenizer.tokenize(text, return_str=True).replace("-", " ##AT##-##AT## ")

    expected = sacrebleu.corpus_bleu(
        [split(text) for text in hypotheses], [[split(text) for text in references]], tokenize="none", force=True
    )
    (found,) = corpus_scores(hypotheses, references, measures=["bleu_compound"], bootstrap=0)
    assert found.value == pytest.approx(expected.score)
    assert found.signature.endswith("|moses|compounds")
    plain = corpus_scores(hypotheses, references, measures=["bleu"], bootstrap=0)[0].value
    assert found.value > plain


@pytest.mark.parametrize(("text", "split"), [
    ("a-b", "a @ - @ b"), ("U-S-Wahl", "U @ - @ S-Wahl"), ("a--b", "a @ - @ -b"), ("- a -b c-", "- a -b c-"),
])  # fmt: skip
def test_compounds_are_split_by_the_scripts_own_substitution(text, split):
    """Perl's s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g goes on behind what it matched."""
    prepare = measure("bleu_compound").prepare
    assert prepare([text]) == [split.replace("@ - @", "##AT##-##AT##")]


def test_compounds_are_compared_without_case_where_that_is_asked():
    for lowercase, case in ((True, "case:lc"), (False, "case:mixed")):
        (found,) = corpus_scores(["Ein-Fall"], ["ein-fall"], measures=["bleu_compound"], bootstrap=0,
                                 lowercase=lowercase)  # fmt: skip
        assert case in found.signature


def test_without_moses_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sacremoses", None)
    with pytest.raises(ValueError, match=r"vanilla-transformer\[moses\]"):
        measure("bleu_compound")


def systems():
    generator = random.Random(1)
    references = [" ".join(generator.choices("abcdefgh", k=12)) for _ in range(60)]

    def spoiled(share: float) -> list[str]:
        return [" ".join(c if generator.random() > share else "x" for c in text.split()) for text in references]

    return references, {"base": spoiled(0.1), "same": spoiled(0.1), "worse": spoiled(0.3)}


def test_differences_are_judged():
    references, named = systems()
    found = {c.system: c for c in compare_systems(named, references, measures=["bleu"], bootstrap=300, trials=300)}
    assert found["base"].p_bootstrap is found["base"].p_randomization is None
    assert found["worse"].p_bootstrap < 0.02
    assert found["worse"].p_randomization < 0.02
    assert found["same"].p_randomization > 0.05
    assert found["worse"].score.value == pytest.approx(sacrebleu.corpus_bleu(named["worse"], [references]).score)


def test_equal_scores_do_not_differ():
    references, named = systems()
    named = {name: named[name] for name in ("base", "worse")} | {"the same": list(named["base"])}
    found = {c.system: c for c in compare_systems(named, references, measures=["bleu", "ter"], trials=300)}
    assert (found["the same"].p_bootstrap, found["the same"].p_randomization) == (1.0, 1.0)
    assert found["worse"].p_randomization < 0.02


def test_randomisation_agrees_with_a_plain_one():
    """Swap the two systems' outputs of each sentence at random; how often is the difference as large?"""
    references, named = systems()
    named = {name: named[name][:20] for name in ("base", "same")}
    references = references[:20]

    def bleu(texts) -> float:
        return sacrebleu.corpus_bleu(list(texts), [references]).score

    actual, generator = abs(bleu(named["base"]) - bleu(named["same"])), np.random.default_rng(0)
    pairs, larger, trials = list(zip(named["base"], named["same"], strict=True)), 0, 1000
    for _ in range(trials):
        swaps = generator.random(20) < 0.5
        one = [pair[int(swap)] for pair, swap in zip(pairs, swaps, strict=True)]
        other = [pair[1 - int(swap)] for pair, swap in zip(pairs, swaps, strict=True)]
        larger += abs(bleu(one) - bleu(other)) >= actual
    found = compare_systems(named, references, measures=["bleu"], trials=2000)[1]
    assert found.p_randomization == pytest.approx((larger + 1) / (trials + 1), abs=0.06)


@pytest.mark.parametrize(
    ("named", "options", "message"),
    [
        ({"a": ["x"]}, {}, "at least two systems"),
        ({"a": ["x"], "b": ["x", "y"]}, {}, "2 hypotheses but 1 references"),
        ({"a": ["x"], "b": ["y"]}, {"bootstrap": 0}, "needs resamplings"),
        ({"a": ["x"], "b": ["y"]}, {"measures": ["rouge"]}, "'rouge' is unknown"),
    ],
)
def test_what_cannot_be_compared_is_refused(named, options, message):
    with pytest.raises(ValueError, match=message):
        compare_systems(named, ["x"], **options)


CASED = ["A Dog runs (fast) in the park.", "He reads - a book!"]
CASED_REFERENCES = ["A dog runs (fast) in the Park.", "He reads: a book!"]


@pytest.mark.parametrize("options", [{"lowercase": True}, {"tokenize": "char"}])
def test_comparisons_are_scored_as_told(options):
    named = {"one": CASED, "other": CASED[::-1]}
    for found in compare_systems(named, CASED_REFERENCES, measures=["bleu"], bootstrap=5, trials=5, **options):
        expected = sacrebleu.corpus_bleu(named[found.system], [CASED_REFERENCES], **options).score
        assert found.score.value == pytest.approx(expected)


def test_compounds_are_split_in_a_comparison():
    named = {"one": CASED, "other": CASED[::-1]}
    for found in compare_systems(named, CASED_REFERENCES, measures=["bleu_compound"], bootstrap=5, trials=5):
        (alone,) = corpus_scores(named[found.system], CASED_REFERENCES, measures=["bleu_compound"], bootstrap=0)
        assert found.score.value == pytest.approx(alone.value)


def test_unicode_punctuation_becomes_asciis_before_compounds_are_split():
    expected = MosesTokenizer(lang="de").tokenize("Rot,Grün", return_str=True)
    assert measure("bleu_compound").prepare(["Rot\uff0cGrün"]) == [expected]
