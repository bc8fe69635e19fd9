"""From files to batches."""

from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.corpus import PairTexts, load_corpus
from modeling_vanilla.data.preparation import FilterReport, prepare_pairs
from modeling_vanilla.data.tokenizer import tokenizer_digest, train_tokenizer, train_word_tokenizer

__all__ = [
    "DataArguments",
    "FilterReport",
    "PairTexts",
    "load_corpus",
    "prepare_pairs",
    "tokenizer_digest",
    "train_tokenizer",
    "train_word_tokenizer",
]
