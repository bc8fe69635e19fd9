"""int8 weights: what is written, that it loads as any model does, and what it computes."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from modeling_vanilla.decoding import Translator
from modeling_vanilla.interop import bf16, int8
from modeling_vanilla.interop.int8 import Int8Embedding, Int8Linear, replace_layers
from tests.fixtures import corpus

SOURCES = [source for source, _ in corpus(5, 2700, 45)]


@pytest.fixture(scope="module")
def converted(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "int8"
    int8.convert(trained, folder)
    return folder


def test_the_folder_is_a_models_and_holds_no_pickle(converted):
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in converted.iterdir()} == names
    marked = json.loads((converted / "config.json").read_text())["quantization_config"]
    assert marked == {"quant_method": "vanilla_int8"}


def test_weights_are_off_by_half_a_step_at_most(trained, converted):
    expected, found = (load_file(folder / "model.safetensors") for folder in (trained, converted))
    matrices = {name for name, x in expected.items() if x.ndim == 2}
    assert {name for name, x in found.items() if x.dtype == torch.int8} == matrices
    for name in matrices:
        scale = found[name.replace("weight", "scale")][:, None]
        torch.testing.assert_close(scale * 127, expected[name].abs().amax(1, keepdim=True))  # the largest is exact
        assert ((found[name] * scale - expected[name]).abs() <= scale * 0.5001).all()
    others = found.keys() - matrices - {name for name in found if name.endswith("scale")}
    assert all(torch.equal(found[name], expected[name]) for name in others)


def test_loads_as_any_model(converted, tmp_path):
    model, info = AutoModelForSeq2SeqLM.from_pretrained(converted, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info.values())
    floats = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    assert floats == {torch.float32}  # whatever is asked for
    assert not any(type(layer) in (nn.Linear, nn.Embedding) for layer in model.modules())
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    model.save_pretrained(tmp_path)
    again, ids = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), torch.tensor([[5, 6, 7]])
    assert torch.equal(*(x(input_ids=ids, decoder_input_ids=ids).logits for x in (model, again)))


@pytest.mark.parametrize(
    "changes", [{"tied_embeddings": "none"}, {"tied_embeddings": "decoder", "decoder_vocab_size": 9}]
)
def test_of_other_ties(lively, tmp_path, changes):
    model = lively(2, **changes)
    ids = torch.tensor([[5, 6, 7]])
    expected = model(input_ids=ids, decoder_input_ids=ids).logits
    replace_layers(model)
    model.tie_weights()
    model.config.quantization_config = int8.Int8Config()
    found = model(input_ids=ids, decoder_input_ids=ids).logits
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(input_ids=ids, decoder_input_ids=ids).logits, found)
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("bias", [False, True])
def test_an_int8_product_rounds_weights_and_inputs_once(bias):
    linear = nn.Linear(40, 30, bias=bias)
    x = torch.randn(2, 5, 40)
    x[0, 0] = 0
    holder = nn.Sequential(linear)
    replace_layers(holder)
    expected = torch.zeros(2, 5, 30, dtype=torch.float64)
    weight, steps = linear.weight.detach().double(), linear.weight.detach().double().abs().amax(1) / 127
    for i in range(2):
        for j in range(5):
            row = x[i, j].double()
            step = row.abs().max() / 127 if row.any() else torch.ones(())
            expected[i, j] = (weight / steps[:, None]).round() @ (row / step).round() * step * steps
    expected = expected + (linear.bias.detach().double() if bias else 0)
    assert isinstance(holder[0], Int8Linear)
    torch.testing.assert_close(holder(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_an_int8_product_of_a_row_does_not_depend_on_its_neighbours():
    holder = nn.Sequential(nn.Linear(16, 8))
    replace_layers(holder)
    x = torch.randn(4, 16) * torch.tensor([[1.0], [100.0], [0.01], [1.0]])
    assert torch.equal(holder(x)[2:3], holder(x[2:3]))


def test_elsewhere_than_on_a_cpu_keeps_shape_and_dtype():
    holder = nn.Sequential(nn.Linear(16, 8)).to("meta")
    replace_layers(holder)
    y = holder(torch.zeros(3, 16, dtype=torch.bfloat16, device="meta"))
    assert (y.shape, y.dtype) == ((3, 8), torch.bfloat16)


def test_embeddings_are_rows_of_the_rounded_matrix():
    embedding, ids = nn.Embedding(9, 4), torch.tensor([[0, 8], [3, 3]])
    holder = nn.Sequential(embedding)
    replace_layers(holder)
    assert isinstance(holder[0], Int8Embedding)
    step = embedding.weight.detach().abs().amax(1, keepdim=True) / 127
    expected = ((embedding.weight.detach() / step).round() * step)[ids]
    torch.testing.assert_close(holder(ids), expected)


def test_it_translates_much_alike(trained, converted):
    expected = Translator.from_pretrained(trained).translate(SOURCES, num_beams=1)
    found = Translator.from_pretrained(converted).translate(SOURCES, num_beams=1)
    assert sum(a.text == b.text for a, b in zip(found, expected, strict=True)) > 0.7 * len(SOURCES)


def test_scores_are_the_models_own_likelihood(converted):
    translator = Translator.from_pretrained(converted)
    source, target = corpus(7, 8)[0]
    batch = translator.tokenizer([source], text_target=[target], return_tensors="pt")
    nll = translator.model(**batch).nll * batch["labels"].numel()
    assert translator.score([source], [target])[0].total == pytest.approx(-nll.item(), rel=1e-5)


@pytest.mark.parametrize("kind", [bf16, int8], ids=lambda module: module.__name__)
def test_what_is_quantised_is_not_converted_again(converted, tmp_path, kind):
    with pytest.raises(ValueError, match="its weights are quantised"):
        kind.convert(converted, tmp_path / "again")


class Elsewhere(torch.Tensor):
    """A tensor that says it isn't on the CPU."""

    device = torch.device("meta")


def test_another_dtype_is_not_to_be_had(converted):
    with pytest.raises(ValueError, match=r"has int8 weights and computes in torch\.float32 alone"):
        Translator.from_pretrained(converted, dtype="bfloat16")


def test_elsewhere_than_on_a_cpu_multiplies_by_the_rounded_weights():
    linear = nn.Linear(16, 8)
    holder, x = nn.Sequential(linear), torch.randn(3, 16)
    replace_layers(holder)
    step = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    expected = nn.functional.linear(x, (linear.weight.detach() / step).round() * step, linear.bias.detach())
    torch.testing.assert_close(holder(x.as_subclass(Elsewhere)).as_subclass(torch.Tensor), expected)
