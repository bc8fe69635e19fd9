# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""Where a token stands: sinusoidal and learned tables (section 3.5), rotations and distances.

Shapes: `B` sentences, `T` query and `S` key positions, `D` d_model, `H` heads, `K` d_k.
"""

import torch
from torch import nn


def sinusoids(positions: torch.Tensor, dim: int, layout: str = "interleaved") -> torch.Tensor:
    """
    PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)): `(..., D)`, float32.

    Args:
        positions: `(...)`, of any integer or float type.
        dim: D, even.
        layout: "interleaved" (the formula above), "halves" (the same columns, sines before cosines) or
            "tensor2tensor" (halves, with wavelengths from 2π to 10000 · 2π spaced by D/2 - 1).
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


def rotate(x: torch.Tensor, rows: torch.Tensor, layout: str = "interleaved") -> torch.Tensor:
    """
    Turns each pair of numbers of queries or keys `(B, H, T, K)` by its position's angle (RoFormer, equation 34), in
    float32; `rows` are the positions' sinusoids, `(T, K)` or `(B, T, K)`. "interleaved" pairs neighbours, the other
    layouts pair the first half with the second.
    """
    rows = rows if rows.ndim == 2 else rows[:, None]  # (T, K) or (B, 1, T, K)
    pairs = (-1, 2) if layout == "interleaved" else (2, -1)
    axis = -1 if layout == "interleaved" else -2
    sin, cos = rows.unflatten(-1, pairs).unbind(axis)  # (T, K/2) each
    a, b = x.float().unflatten(-1, pairs).unbind(axis)  # (B, H, T, K/2) each
    return torch.stack((a * cos - b * sin, a * sin + b * cos), axis).flatten(-2).to(x.dtype)


def alibi_bias(num_heads: int, query_positions: torch.Tensor, num_keys: int) -> torch.Tensor:
    """
    ALiBi: -m · |query position - key position|, `(1, H, T, S)`, float32, for queries at `(T)` and keys at 0 to S - 1.

    The slopes m fall from 2^(-8/H) to 2^-8 in a geometric row for a power of two of heads; other numbers take every
    second one of the next power's row besides (Press et al. 2022, and their code).
    """
    device = query_positions.device
    power = 1 << (num_heads.bit_length() - 1)  # the largest power of two up to H
    slopes = 2 ** (-8 / power * torch.arange(1, power + 1, dtype=torch.float32, device=device))
    finer = 2 ** (-4 / power * (1 + 2 * torch.arange(num_heads - power, dtype=torch.float32, device=device)))
    distance = (query_positions[:, None] - torch.arange(num_keys, device=device)).abs()  # (T, S)
    return -torch.cat((slopes, finer))[None, :, None, None] * distance


def count_tokens(attention_mask: torch.Tensor, start: int | torch.Tensor, length: int) -> torch.Tensor:
    """
    How many tokens stand up to each of `length` positions from `start` on, that one included: `(B, length)`, of a mask
    `(B, L)` from position 0 on; a `ValueError` when it ends before the last position.
    """
    counts = attention_mask.long().cumsum(-1)
    if isinstance(start, torch.Tensor):
        return counts[:, start + torch.arange(length, device=counts.device)]
    if counts.shape[1] < start + length:
        raise ValueError(
            f"the attention mask covers {counts.shape[1]} positions, but the input ends at {start + length}: "
            "it must cover the cached tokens too"
        )
    return counts[:, start : start + length]


class LearnedPositions(nn.Module):
    """A table of parameters, one row a position; longer inputs are refused."""

    def __init__(self, num_positions: int, dim: int, offset: int = 0):
        super().__init__()
        self.offset = offset
        self.weight = nn.Parameter(torch.randn(num_positions + offset, dim))  # (P, D)

    def forward(self, start: int | torch.Tensor, length: int, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        """As `SinusoidalPositions.forward`, in the model's precision."""
        if not isinstance(start, torch.Tensor):
            self.reach(start + length)
        if position_ids is None:
            position_ids = start + torch.arange(length, device=self.weight.device)
        return nn.functional.embedding(position_ids + self.offset, self.weight)  # (T, D) or (B, T, D)

    def reach(self, num_positions: int) -> None:
        """Raises `ValueError` where the table has fewer rows."""
        rows = len(self.weight) - self.offset
        if num_positions > rows:
            raise ValueError(
                f"{num_positions} positions are more than the {rows} that this model has learned "
                "(max_position_embeddings): shorten the input, or ask for fewer new tokens"
            )


class SinusoidalPositions(nn.Module):
    """
    A float32 table of `sinusoids` that grows when asked for positions past its end; never saved, and never cast, for
    half precision can't tell position 257 from 258.
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
            empty = torch.empty_like(self.table, dtype=torch.float32)
            self.table = empty if empty.is_meta else self.rows(len(empty), empty.device)
        return self

    def forward(self, start: int | torch.Tensor, length: int, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        """
        Rows `(T, D)`, or `(B, T, D)` with `position_ids`; float32.

        Args:
            start: the first position, counted from 0. A static cache gives its length as a tensor; the table is then
                expected to reach the cache's end already.
            length: T.
            position_ids: `(B, T)`, where sentences begin at different places; all below `start + length`.
        """
        if not isinstance(start, torch.Tensor):
            self.reach(start + length)
            if position_ids is None:
                return self.table[start : start + length]  # (T, D)
        elif position_ids is None:
            position_ids = start + torch.arange(length, device=self.table.device)
        return self.table[position_ids]

    def reach(self, num_positions: int) -> None:
        """Makes sure that the table has at least `num_positions` rows, at least doubling it when it has not."""
        if num_positions > len(self.table):
            with torch.inference_mode(False):  # or no training could use it afterwards
                self.table = self.rows(max(num_positions, 2 * len(self.table)), self.table.device)
