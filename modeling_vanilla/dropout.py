# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""Dropout (section 5.4) whose random numbers don't cost a third of the training step on a CPU."""

import torch
from torch import nn


class _MaskedScale(torch.autograd.Function):
    """x · mask · scale; keeps the mask as one byte an element, and nothing else, for the backward pass."""

    @staticmethod
    def forward(ctx, x, mask, scale):
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (x * mask).mul_(scale)

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return (gradient * mask).mul_(ctx.scale), None, None


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """
    Sets each element to 0 with probability `p`, and scales the others by 1 / (1 - p).

    On a CPU PyTorch draws one double an element, one after the other. Here each 64-bit draw of the same generator (so
    `torch.manual_seed` decides as ever) serves four elements with 16 bits, and `p` is rounded to 1/65536.
    """
    if not training or p == 0:
        return x
    dropped = round(p * 65536)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or dropped == 65536:
        return nn.functional.dropout(x, p, training)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    mask = (bits[: x.numel()] >= dropped - 32768).view(x.shape)
    mask = mask.view(torch.uint8)  # a product with booleans takes three times as long
    return _MaskedScale.apply(x, mask, 65536 / (65536 - dropped))


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with the function above."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dropout(x, self.p, self.training)
