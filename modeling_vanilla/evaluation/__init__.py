"""From text to numbers."""

from modeling_vanilla.evaluation.metrics import Score, corpus_scores, generation_metrics, tokenize_option

__all__ = ["Score", "corpus_scores", "generation_metrics", "tokenize_option"]
