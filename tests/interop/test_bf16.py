"""bfloat16 weights: the rounded ones, in a folder that loads as any model's."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from modeling_vanilla.decoding import Translator
from modeling_vanilla.interop import bf16
from tests.fixtures import corpus

SOURCES = [source for source, _ in corpus(5, 2700, 45)]


@pytest.fixture(scope="module")
def converted(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "bf16"
    bf16.convert(trained, folder)
    return folder


def test_the_folder_is_a_models(converted):
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in converted.iterdir()} == names


def test_weights_are_the_rounded_ones(trained, converted):
    expected, found = (load_file(folder / "model.safetensors") for folder in (trained, converted))
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert torch.equal(found[name], x.bfloat16())
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (converted, trained)]
    assert sizes[0] < 0.52 * sizes[1]


def test_it_loads_as_it_was_saved(converted):
    model = AutoModelForSeq2SeqLM.from_pretrained(converted)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight


def test_it_translates_much_alike(trained, converted):
    expected = Translator.from_pretrained(trained).translate(SOURCES, num_beams=1)
    found = Translator.from_pretrained(converted).translate(SOURCES, num_beams=1)
    assert sum(a.text == b.text for a, b in zip(found, expected, strict=True)) > 0.7 * len(SOURCES)
