"""What all tests share: no network, one thread, a fixed seed, and the smallest models that have every part."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start: sums depend on the number of threads

from collections.abc import Callable

import pytest
import torch

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from tests.fixtures import trained  # noqa: F401  (a fixture for all)

torch.set_num_threads(1)
collect_ignore = ["conformance"]  # a run of its own, `make conformance`: there `tests` is the library's package

TINY = {
    "vocab_size": 20,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "dropout": 0.0,
}


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., VanillaConfig]:
    """Builds the config of a tiny model without dropout; keyword arguments change it."""

    def build(**changes) -> VanillaConfig:
        return VanillaConfig(**TINY | changes)

    return build


@pytest.fixture(scope="session")
def tiny_model(tiny_config) -> Callable[..., VanillaForConditionalGeneration]:
    """Builds such a model, in evaluation mode, with biases and norms that are not at their trivial initial values."""

    def build(**changes) -> VanillaForConditionalGeneration:
        model = VanillaForConditionalGeneration(tiny_config(**changes)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "layer_norm" in name:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return model

    return build


@pytest.fixture(scope="session")
def lively(tiny_model) -> Callable[..., VanillaForConditionalGeneration]:
    """Builds a model that pays attention to its source, which random weights alone hardly do."""

    def build(seed: int = 0, **changes) -> VanillaForConditionalGeneration:
        torch.manual_seed(seed)
        model = tiny_model(**{"output_bias": True} | changes)
        with torch.no_grad():
            for layer in model.model.decoder.layers:
                layer.encoder_attn.q_proj.weight *= 3
                layer.encoder_attn.v_proj.weight *= 3
        return model

    return build
