"""Scores against sacreBLEU called by hand."""

import logging

import numpy as np
import pytest
import sacrebleu
from tokenizers import Tokenizer, models
from transformers import EvalPrediction, PreTrainedTokenizerFast

from modeling_vanilla.evaluation import compare_systems, corpus_scores, generation_metrics, tokenize_option

HYPOTHESES = ["The cat sat on the mat.", "A dog runs in the park today.", "He reads a book."]
REFERENCES = ["The cat sat on a mat.", "A dog is running in the park.", "He is reading a book."]


@pytest.mark.parametrize("options", [{}, {"lowercase": True}, {"tokenize": "intl"}, {"tokenize": "none"}])
def test_bleu_and_chrf_are_sacrebleus(options):
    bleu, chrf = corpus_scores(HYPOTHESES, REFERENCES, bootstrap=0, **options)
    assert bleu.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], **options).score
    lowercase = options.get("lowercase", False)
    assert chrf.value == sacrebleu.metrics.CHRF(lowercase=lowercase).corpus_score(HYPOTHESES, [REFERENCES]).score


def test_signature_says_how():
    bleu, chrf = corpus_scores(HYPOTHESES, REFERENCES, tokenize="intl", lowercase=True)
    assert "case:lc" in bleu.signature
    assert "tok:intl" in bleu.signature
    assert "bs:1000|seed:12345" in bleu.signature
    assert f"version:{sacrebleu.__version__}" in chrf.signature


def test_interval_is_that_of_the_bootstrap():
    result = sacrebleu.metrics.BLEU().corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=1000)
    assert corpus_scores(HYPOTHESES, REFERENCES)[0].interval == pytest.approx(result._ci)


@pytest.mark.parametrize("arguments", [(HYPOTHESES, REFERENCES, 0), (["A b c d."], ["A b c d."], 1000)])
def test_without_a_bootstrap_there_is_no_interval(arguments):
    *texts, bootstrap = arguments
    for score in corpus_scores(*texts, bootstrap=bootstrap):
        assert score.interval is None
        assert "±" not in str(score)
        assert "bs:" not in score.signature


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "message"),
    [
        (["a"], ["a", "b"], {}, "1 hypotheses but 2 references"),
        ([], [], {}, "nothing to score"),
        ("a", "a", {}, "lists of strings"),
        ([["a", "b"]], ["a b"], {}, "lists of strings"),
        (["a b"], [["a b"]], {}, "lists of strings"),
        (["a"], ["a"], {"tokenize": "13b"}, "tokenize='13b' is unknown: one of"),
        (["a"], ["a"], {"bootstrap": 1}, "bootstrap=1"),
        (["a"], ["a"], {"bootstrap": -5}, "bootstrap=-5"),
    ],
)
def test_what_cannot_be_scored_is_refused(hypotheses, references, options, message):
    with pytest.raises(ValueError, match=message):
        corpus_scores(hypotheses, references, **options)


@pytest.mark.parametrize(
    ("language", "tokenizer"), [("de", "13a"), ("zh", "zh"), ("zh_CN", "zh"), ("ja", "char"), (None, "13a")]
)
def test_tokenizer_follows_the_language(language, tokenizer):
    assert tokenize_option(language) == tokenizer


def test_metrics_for_trainer_score_ids_and_skip_padding():
    words = ["<pad>", "<s>", "</s>", "a", "b", "c", "d", "e"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    predictions = np.array([[3, 4, 5, 6, 2, 0, 0], [3, 4, 5, 6, 7, 2, -100]])
    labels = np.array([[3, 4, 5, 6, 2, -100], [3, 4, 5, 7, 2, -100]])
    scores = generation_metrics(tokenizer)(EvalPrediction(predictions=predictions, label_ids=labels))
    expected = sacrebleu.corpus_bleu(["a b c d", "a b c d e"], [["a b c d", "a b c e"]]).score
    assert scores["bleu"] == expected
    assert set(scores) == {"bleu", "chrf"}


@pytest.mark.parametrize("predictions", [np.zeros((2, 3, 8)), (np.zeros((2, 3, 8)), np.zeros((2, 3, 4)))])
def test_what_is_no_generated_ids_is_refused_with_the_setting_that_makes_them(predictions):
    labels = np.zeros((2, 3), dtype=int)
    with pytest.raises(ValueError, match="set predict_with_generate=True"):
        generation_metrics(None)(EvalPrediction(predictions=predictions, label_ids=labels))


def test_a_comparison_logs_nothing_of_its_progress(caplog):
    logger = logging.getLogger("sacrebleu")
    caplog.set_level(logging.INFO, "sacrebleu")
    compare_systems({"a": HYPOTHESES, "b": REFERENCES}, REFERENCES, bootstrap=2, trials=2)
    assert not caplog.records
    assert logger.level == logging.INFO  # as it was


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter", "bleu_tok_lc"])
def test_resamplings_that_score_nothing_are_no_error(name):
    """Some resamplings of these have no match at all, and sacreBLEU then mixes types of numbers."""
    hypotheses = ["a b c d e f"] + ["x y z w"] * 9
    references = ["a b c d e g"] + ["p q r s t"] * 9
    (score,) = corpus_scores(hypotheses, references, measures=[name])
    assert score.interval > 0
