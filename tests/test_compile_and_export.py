"""What traces the models: `torch.compile` without a graph break in forward, `torch.export` with sizes that vary."""

import pytest
import torch
from torch.export import Dim

import modeling_vanilla as mv
from tests.fixtures import POSITION_ENCODINGS

IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]])
TEXT = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
TARGET = torch.tensor([[13, 14, 15, 2], [16, 2, -100, -100]])
IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)
CASES = {  # class, inputs, labels
    "translation": (mv.VanillaForConditionalGeneration, TEXT | {"decoder_input_ids": TARGET.clamp(min=0)}, TARGET),
    "language model": (mv.VanillaForCausalLM, TEXT, IDS.masked_fill(IDS == 0, -100)),
    "text classification": (mv.VanillaForSequenceClassification, TEXT, torch.tensor([0, 2])),
    "image classification": (mv.VanillaForImageClassification, {"pixel_values": IMAGES}, torch.tensor([1, 0])),
}


def graphs_of(model, **inputs):
    """Compiled and plain outputs; fails on a graph break, or where one call makes several graphs."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(model, fullgraph=True, backend="eager")(**inputs)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    return compiled, model(**inputs)


@pytest.mark.parametrize("case", CASES)
def test_forward_with_labels_has_no_graph_break_in_training(tiny_config, case):
    kind, inputs, labels = CASES[case]
    model = kind(tiny_config(encoder_layers=1, decoder_layers=1, num_labels=3, image_size=8, patch_size=4)).train()
    inputs = {**inputs, "labels": labels}
    if case == "translation":
        inputs |= {"label_smoothing": 0.1, "num_items_in_batch": torch.tensor(6)}
    compiled, plain = graphs_of(model, **inputs)
    torch.testing.assert_close(compiled.loss, plain.loss, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_forward_without_labels_has_no_graph_break(tiny_config, case):
    kind, inputs, _ = CASES[case]
    model = kind(tiny_config(encoder_layers=1, decoder_layers=1, num_labels=3, image_size=8, patch_size=4)).eval()
    compiled, plain = graphs_of(model, **inputs)
    torch.testing.assert_close(compiled.logits, plain.logits, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("position_encoding", POSITION_ENCODINGS)
def test_no_position_encoding_breaks_the_graph(tiny_model, position_encoding):
    model = tiny_model(position_encoding=position_encoding)
    for cached in (False, True):
        compiled, plain = graphs_of(model, **CASES["translation"][1], use_cache=cached)
        torch.testing.assert_close(compiled.logits, plain.logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case != "translation"])
def test_the_other_models_are_exported_with_any_batch(tiny_config, case):
    kind, inputs, _ = CASES[case]
    model = kind(tiny_config(encoder_layers=1, decoder_layers=1, num_labels=3, image_size=8, patch_size=4)).eval()
    batch, length = Dim("batch", max=30), Dim("length", max=30)
    is_image = case == "image classification"
    shapes = dict.fromkeys(inputs, {0: batch} if is_image else {0: batch, 1: length})
    options = {"use_cache": False} if case == "language model" else {}
    more = {name: x.repeat(3, 1, 1, 1) if is_image else x.repeat(3, 2) for name, x in inputs.items()}
    with torch.no_grad():
        shapes |= dict.fromkeys(options)
        program = torch.export.export(model, (), {**inputs, **options}, dynamic_shapes=shapes)
        found = program.module()(**more, **options).logits
        torch.testing.assert_close(found, model(**more, **options).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "position_encoding",
    [
        "sinusoidal",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in POSITION_ENCODINGS if kind != "sinusoidal"),
    ],
)
def test_an_exported_model_takes_any_batch_and_length(tiny_model, position_encoding):
    model = tiny_model(position_encoding=position_encoding, encoder_layers=1, decoder_layers=1)
    batch, source, target = (Dim(name, max=30) for name in ("batch", "source", "target"))
    shapes = {"input_ids": {0: batch, 1: source}, "attention_mask": {0: batch, 1: source}}
    shapes |= {"decoder_input_ids": {0: batch, 1: target}, "use_cache": None}
    with torch.no_grad():
        program = torch.export.export(model, (), {**CASES["translation"][1], "use_cache": False}, dynamic_shapes=shapes)
        for B, S, T in ((2, 5, 4), (1, 3, 1), (7, 13, 9), (3, 30, 30)):
            ids, mask = torch.randint(3, 20, (B, S)), torch.ones(B, S, dtype=torch.long)
            mask[1:, 2:] = 0
            inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.randint(3, 20, (B, T))}
            found = program.module()(**inputs, use_cache=False).logits
            torch.testing.assert_close(found, model(**inputs, use_cache=False).logits, rtol=1e-5, atol=1e-6)
