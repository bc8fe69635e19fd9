"""BLEU and chrF by sacreBLEU, with their signatures and bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from transformers import EvalPrediction, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Score:
    """
    One figure.

    Attributes:
        name: "BLEU" or "chrF".
        value: from 0 to 100.
        interval: half of the 95 % bootstrap interval's width, in points; None when it wasn't asked for.
        signature: sacreBLEU's own.
    """

    name: str
    value: float
    interval: float | None
    signature: str

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" ± {self.interval:.2f}"
        return f"{self.name} {self.value:.2f}{interval}  {self.signature}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tokenize_option(target_lang: str | None) -> str:
    """The sacreBLEU tokenizer for a target language: `zh` for Chinese, `char` for Japanese, else `13a`."""
    language = (target_lang or "").split("_")[0].split("-")[0].lower()
    return {"zh": "zh", "ja": "char"}.get(language, "13a")


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    bootstrap: int = 1000,
) -> list[Score]:
    """
    BLEU and chrF of detokenised text.

    Args:
        hypotheses, references: one string a sentence, as many of each.
        tokenize: sacreBLEU's tokenizer for BLEU (13a, intl, zh, char, none ...).
        lowercase: compare without case.
        bootstrap: resamplings for the 95 % interval; 0 for none.

    Raises:
        ValueError: when the two differ in number, are empty, or the tokenizer is unknown.
    """
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("hypotheses and references are lists of strings, one string a sentence")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses but {len(references)} references: there must be as many")
    if not hypotheses:
        raise ValueError("nothing to score: no hypotheses")
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize={tokenize!r} is unknown: one of {', '.join(BLEU.TOKENIZERS)}")
    if bootstrap < 0 or bootstrap == 1:
        raise ValueError(f"bootstrap={bootstrap}: 0 for no interval, or at least 2 resamplings")
    if len(hypotheses) == 1:
        bootstrap = 0  # an interval from resamplings of one sentence would always be 0
    scores = []
    metrics = {"BLEU": BLEU(tokenize=tokenize, lowercase=lowercase), "chrF": CHRF(lowercase=lowercase)}
    for name, metric in metrics.items():
        result = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=max(bootstrap, 1))
        scores.append(
            Score(
                name=name,
                value=float(result.score),
                interval=float(result._ci) if bootstrap else None,
                signature=metric.get_signature().format(),
            )
        )
    return scores


def generation_metrics(
    tokenizer: PreTrainedTokenizerBase, *, tokenize: str = "13a"
) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for Trainer: `bleu` and `chrf` of generated ids, from 0 to 100."""

    def decode(ids: np.ndarray) -> list[str]:
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)  # -100 is no token
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        scores = corpus_scores(
            decode(prediction.predictions), decode(prediction.label_ids), tokenize=tokenize, bootstrap=0
        )
        return {score.name.lower(): score.value for score in scores}

    return compute_metrics


__all__ = ["Score", "corpus_scores", "generation_metrics", "tokenize_option"]
