"""The probability of given translations."""

import torch
from torch import nn

from modeling_vanilla.loss import tokens_per_chunk


@torch.no_grad()
def token_log_probs(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    ignore_index: int = -100,
) -> torch.Tensor:
    """
    log p(label) of every position, of the labels' shape, float32; 0 where a label is `ignore_index`.

    Args:
        hidden_states: the decoder's output, `(..., D)`.
        weight, bias: the output projection, `(V, D)` and `(V)`.
        labels: `(...)`.
    """
    keep = labels != ignore_index
    size = tokens_per_chunk(weight)
    log_probs = torch.zeros(labels.shape, dtype=torch.float32, device=labels.device)
    log_probs[keep] = torch.cat(
        [
            -nn.functional.cross_entropy(nn.functional.linear(h, weight, bias).float(), y, reduction="none")
            for h, y in zip(hidden_states[keep].split(size), labels[keep].split(size), strict=True)  # (N, D), (N)
        ]
    )
    return log_probs


__all__ = ["token_log_probs"]
