"""A small tokenised corpus and a small model for the tests of training."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration

VOCAB = 40


def make_pairs(count: int = 120, seed: int = 0) -> Dataset:
    """Pairs whose target is the source reversed: learnable, and a copied or shifted label would show."""
    generator = np.random.default_rng(seed)
    sources = [generator.integers(3, VOCAB, generator.integers(1, 12)).tolist() for _ in range(count)]
    return Dataset.from_dict(
        {
            "input_ids": [[*ids, 2] for ids in sources],
            "labels": [[*reversed(ids), 2] for ids in sources],
        }
    )


def make_model(dropout: float = 0.0, seed: int = 0, vocab_size: int = VOCAB) -> VanillaForConditionalGeneration:
    torch.manual_seed(seed)
    config = VanillaConfig(
        vocab_size=vocab_size,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        dropout=dropout,
    )
    return VanillaForConditionalGeneration(config)


@pytest.fixture
def pairs() -> Dataset:
    return make_pairs()
