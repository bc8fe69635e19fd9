"""`evaluate.Metric` modules for BLEU, chrF and TER that need no download, unlike those of `evaluate.load`."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from modeling_vanilla.evaluation.metrics import MEASURES, corpus_scores, measure

CITATION = """@inproceedings{post-2018-call,
    title = "A Call for Clarity in Reporting {BLEU} Scores", author = "Post, Matt",
    booktitle = "Proceedings of the Third Conference on Machine Translation", year = "2018",
    url = "https://aclanthology.org/W18-6319",
}"""


class TranslationMetric(evaluate.Metric):
    """
    A measure of `evaluation.measure` as a module of the evaluate library.

    `compute(predictions=..., references=...)` takes lists of strings, one reference a sentence, and gives the figure
    under the measure's name, its 95 % bootstrap `interval` (half its width, or None) and its `signature`.

    Args:
        config_name: the measure: bleu, chrf, ter, bleu_tok_lc, bleu_compound.
        others: as for `evaluate.Metric`.

    Example:
        >>> TranslationMetric("bleu").compute(predictions=["a b c d"], references=["a b c d"])["bleu"]
        100.00000000000004
    """

    def __init__(self, config_name: str = "bleu", **kwargs: Any):
        if config_name not in MEASURES:
            raise ValueError(f"measure {config_name!r} is unknown: one of {', '.join(MEASURES)}")
        super().__init__(config_name=config_name, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(measure.__doc__),
            citation=CITATION,
            inputs_description="predictions and references: lists of strings, as many of each",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
            reference_urls=["https://github.com/mjpost/sacrebleu"],
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        tokenize: str = "13a",
        lowercase: bool = False,
        bootstrap: int = 1000,
    ) -> dict[str, Any]:
        name = self.config_name
        (score,) = corpus_scores(
            predictions, references, measures=[name], tokenize=tokenize, lowercase=lowercase, bootstrap=bootstrap
        )
        return {name: score.value, "interval": score.interval, "signature": score.signature}


__all__ = ["TranslationMetric"]
