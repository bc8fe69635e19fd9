"""What all conversions share: adapters are merged, and what fails leaves nothing."""

import importlib
import os

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.decoding import Translator
from modeling_vanilla.interop import bf16, int8
from modeling_vanilla.interop.common import new_folder, read_model
from tests.fixtures import corpus

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*gradient_checkpointing.*:FutureWarning", "ignore:.*(tied|save_embedding_layers):UserWarning"
)
SOURCES = [source for source, _ in corpus(5, 2700, 182)]


def adapter_of(trained, folder, **settings):
    """An adapter of the model that changes what it says."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(
        AutoModelForSeq2SeqLM.from_pretrained(trained), peft.LoraConfig(task_type="SEQ_2_SEQ_LM", **settings)
    )
    for name, weight in model.named_parameters():
        if "lora" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(trained).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(trained, tmp_path_factory):
    return adapter_of(trained, tmp_path_factory.mktemp("adapter"))


def test_an_adapter_is_merged_and_ties_survive(trained, adapter):
    plain, _ = read_model(adapter)
    expected = [t.text for t in Translator.from_pretrained(adapter).translate(SOURCES, num_beams=1)]
    assert expected != [t.text for t in Translator.from_pretrained(trained).translate(SOURCES, num_beams=1)]
    merged = Translator(plain, AutoTokenizer.from_pretrained(trained))
    assert [t.text for t in merged.translate(SOURCES, num_beams=1)] == expected
    assert plain.lm_head.weight is plain.model.encoder.embed_tokens.weight
    assert {name for name, _ in plain.named_parameters()} == {
        name for name, _ in AutoModelForSeq2SeqLM.from_pretrained(trained).named_parameters()
    }


@pytest.mark.parametrize("to", ["bf16", "int8", "ctranslate2"])  # an ONNX export takes most of a minute
def test_a_converted_adapter_is_one_still(trained, adapter, tmp_path, to):
    pytest.importorskip("ctranslate2" if to == "ctranslate2" else "torch")
    module = importlib.import_module(f"modeling_vanilla.interop.{to}")
    module.convert(adapter, tmp_path / "converted")
    expected, base, found = (
        [t.text for t in Translator.from_pretrained(x).translate(SOURCES, num_beams=1)]
        for x in (adapter, trained, tmp_path / "converted")
    )
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    assert same > sum(a == b for a, b in zip(found, base, strict=True))
    assert same == len(SOURCES) or to != "ctranslate2"


def test_an_adapter_with_weights_of_its_own_is_merged_too(trained, tmp_path):
    adapter = adapter_of(trained, tmp_path / "adapter", modules_to_save=["lm_head"])
    model, _ = read_model(adapter)
    assert model.lm_head.weight is not model.model.encoder.embed_tokens.weight
    bf16.convert(adapter, tmp_path / "bf16")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "bf16")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight.bfloat16())


def test_an_adapter_that_pulls_ties_apart_is_refused(trained, tmp_path):
    adapter = adapter_of(trained, tmp_path / "adapter", target_modules=["lm_head"])
    with pytest.raises(ValueError, match="can't be merged into its model"):
        int8.convert(adapter, tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize("there", [False, True])
def test_what_fails_leaves_nothing(tmp_path, there):
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()

    def fill():
        with new_folder(folder):
            (folder / "deeper").mkdir()
            (folder / "config.json").write_text("{}")
            (folder / "deeper" / "file").write_text("")
            raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        fill()
    assert os.listdir(tmp_path) == (["folder"] if there else [])
    with new_folder(folder):
        assert not any(folder.iterdir())


@pytest.mark.parametrize("to", ["bf16", "int8", "ctranslate2", "onnx"])
def test_a_conversion_without_a_model_makes_no_folder(tmp_path, to):
    pytest.importorskip({"ctranslate2": "ctranslate2", "onnx": "onnxruntime"}.get(to, "torch"))
    module = importlib.import_module(f"modeling_vanilla.interop.{to}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no model there"):
        module.convert(tmp_path / "empty", tmp_path / "converted")
    assert not (tmp_path / "converted").exists()
