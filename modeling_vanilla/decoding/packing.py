"""Weights in the layout that oneDNN multiplies by, for the few rows of a decoding step."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from modeling_vanilla.loss import is_plain

MIN_ROWS = 16  # below, a search is over before packing has paid
TYPICAL_ROWS = 64  # what oneDNN chooses its layout for; from 4 to 256 rows it is faster than an unpacked product


@contextmanager
def packed(model: PreTrainedModel, rows: int) -> Iterator[None]:
    """
    Within it, the decoder's and the output's layers multiply by packed copies of their weights on a CPU: a product of
    16 rows takes 0.6 of the time in float32 and 0.8 in bfloat16, of 64 rows 0.85 and 0.65. Packing takes as long as
    some five to ten decoding steps, and as much memory as those weights.

    Args:
        rows: of a decoding step, at least at first; with few nothing is packed. Nor is it where a product isn't a
            `torch.nn.Linear`'s own: quantised, adapted or hooked, on another device, of another precision, in autocast.
    """
    layers: list[nn.Linear] = []
    try:
        if rows >= MIN_ROWS and torch.backends.mkldnn.is_available() and not torch.is_autocast_enabled("cpu"):
            for layer in (*model.get_decoder().modules(), model.get_output_embeddings()):
                if isinstance(layer, nn.Linear) and is_plain(layer) and can_pack(layer.weight):
                    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), TYPICAL_ROWS)
                    setattr(layer, "forward", partial(multiply, weight=weight, bias=layer.bias))  # noqa: B010
                    layers.append(layer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `torch.nn.functional.linear` gives, by a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN has a layout for this matrix, on this machine."""
    if type(weight) not in (torch.Tensor, nn.Parameter) or weight.device.type != "cpu":
        return False
    has_bf16 = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 or has_bf16


__all__ = ["packed"]
