"""Packed products beside unpacked ones, and what must not be packed."""

import copy

import pytest
import torch

from modeling_vanilla.decoding.packing import packed

HAS_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(not HAS_BF16, reason="no bf16 here"))]


def replaced(model) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [16, 17, 100, 300])
@pytest.mark.parametrize("changes", [{}, {"d_model": 24, "vocab_size": 501, "output_bias": True}, {"use_bias": False}])
def test_the_products_are_the_same(lively, changes, rows, dtype):
    model = lively(0, **changes).to(dtype)
    layers = [model.lm_head, *(layer.fc1 for layer in model.model.decoder.layers)]
    inputs = [torch.randn(rows, 1, layer.in_features, dtype=dtype) for layer in layers]
    with torch.no_grad():
        expected = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
        with packed(model, rows):
            assert "lm_head" in replaced(model)
            found = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


def test_nothing_is_packed_for_few_rows(lively):
    model = lively(0)
    with packed(model, 15):
        assert not replaced(model)


def test_what_is_no_plain_product_is_not_packed(lively):
    model = lively(0)
    model.lm_head.register_forward_hook(lambda *_: None)
    model.model.decoder.layers[0].fc1.double()
    with packed(model, 64):
        names = replaced(model)
    assert names
    assert not {"lm_head", "model.decoder.layers.0.fc1"} & set(names)


def test_autocast_is_left_alone(lively):
    model = lively(0)
    with torch.autocast("cpu", torch.bfloat16), packed(model, 64):
        assert not replaced(model)


def test_no_trace_is_left_even_by_a_failure(lively):
    model = lively(0)
    with pytest.raises(RuntimeError), packed(model, 64):
        raise RuntimeError
    assert not replaced(model)


def test_each_call_sees_the_weights_of_its_time(lively):
    model = lively(0)
    batch = {"input_ids": torch.randint(3, 20, (32, 6))}
    model.generate(**batch, max_length=9)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn_like(parameter))  # unseen by the version counter
    expected = copy.deepcopy(model).generate(**batch, max_length=9)
    assert torch.equal(model.generate(**batch, max_length=9), expected)


def test_a_failure_while_packing_leaves_nothing_packed(lively, monkeypatch):
    model = lively(0)
    packs, calls = torch.ops.mkldnn._reorder_linear_weight, []

    def failing(*args):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return packs(*args)

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", failing)
    with pytest.raises(MemoryError), packed(model, 64):
        pass
    assert not replaced(model)
