"""From text to numbers."""

from modeling_vanilla.evaluation.metrics import (
    Comparison,
    Score,
    compare_systems,
    corpus_scores,
    generation_metrics,
    measure,
    tokenize_option,
)

__all__ = [
    "Comparison",
    "Score",
    "compare_systems",
    "corpus_scores",
    "generation_metrics",
    "measure",
    "tokenize_option",
]
