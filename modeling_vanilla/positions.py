# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""Position encodings (section 3.5).

Shapes: `B` sentences, `T` positions, `D` d_model.
"""

import torch
from torch import nn


def sinusoids(positions: torch.Tensor, dim: int, layout: str = "interleaved") -> torch.Tensor:
    """
    The sinusoidal encoding, in float32 whatever the model's precision.

    PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)).

    Args:
        positions (`torch.Tensor`): positions, of any shape `(...)`, any integer or float type.
        dim (`int`): D, even.
        layout (`str`): "interleaved" (the formula above), "halves" (the same columns, sines before cosines) or
            "tensor2tensor" (halves, with wavelengths from 2π to 10000 · 2π spaced by D/2 - 1).

    Returns:
        `torch.Tensor` of shape `(..., D)`, float32.
    """
    # Angles in float64: at position 10,000 float32 has lost three digits of the fastest wave's phase.
    step = dim // 2 - 1 if layout == "tensor2tensor" else dim // 2
    exponents = torch.arange(dim // 2, dtype=torch.float64, device=positions.device) / step  # (D/2)
    angles = positions.double()[..., None] * 10000.0**-exponents  # (..., D/2)
    if layout == "interleaved":
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (..., D): s c s c ...
    else:
        table = torch.cat((angles.sin(), angles.cos()), dim=-1)  # (..., D): s s ... c c ...
    return table.float()


class SinusoidalPositions(nn.Module):
    """
    A float32 table of `sinusoids` that grows when asked for positions past its end.

    The table is never saved and never cast: half precision can't tell position 257 from 258.
    """

    table: torch.Tensor

    def __init__(self, num_positions: int, dim: int, layout: str = "interleaved", offset: int = 0):
        super().__init__()
        self.dim, self.layout, self.offset = dim, layout, offset
        self.register_buffer("table", self.rows(num_positions), persistent=False)  # (P, D)

    def rows(self, num_positions: int, device: torch.device | None = None) -> torch.Tensor:
        """The first `num_positions` rows: `(num_positions, D)`, float32."""
        positions = torch.arange(self.offset, self.offset + num_positions, device=device)
        return sinusoids(positions, self.dim, self.layout)

    def _apply(self, fn, recurse=True):  # what .to(), .half() and .bfloat16() call
        super()._apply(fn, recurse)
        if self.table.dtype != torch.float32:
            device = self.table.device
            self.table = (
                torch.empty_like(self.table, dtype=torch.float32)
                if device.type == "meta"
                else self.rows(len(self.table), device)
            )
        return self

    def forward(self, start: int | torch.Tensor, length: int) -> torch.Tensor:
        """
        Args:
            start (`int` or a 0-dim `torch.Tensor`): the first position, counted from 0. A static cache gives its
                length as a tensor; the table is then expected to reach the cache's end already.
            length (`int`): T.

        Returns:
            `torch.Tensor` of shape `(T, D)`, float32.
        """
        if isinstance(start, torch.Tensor):
            return self.table[start + torch.arange(length, device=self.table.device)]  # (T, D)
        self.reach(start + length)
        return self.table[start : start + length]  # (T, D)

    def reach(self, num_positions: int) -> None:
        """Makes sure that the table has at least `num_positions` rows, at least doubling it when it has not."""
        if num_positions > len(self.table):
            self.table = self.rows(max(num_positions, 2 * len(self.table)), self.table.device)


__all__ = ["SinusoidalPositions", "sinusoids"]
