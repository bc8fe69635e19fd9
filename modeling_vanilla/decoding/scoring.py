"""The probability of given translations."""

from typing import Any

import torch
from torch import nn

from modeling_vanilla.loss import tokens_per_chunk


@torch.no_grad()
def token_log_probs(
    hidden_states: torch.Tensor, head: Any, labels: torch.Tensor, ignore_index: int = -100
) -> torch.Tensor:
    """
    log p(label) of every position, of the labels' shape, float32; 0 where a label is `ignore_index`.

    Args:
        hidden_states: the decoder's output, `(..., D)`.
        head: the output projection, with a `weight` `(V, D)`.
        labels: `(...)`.
    """
    keep = labels != ignore_index
    size = tokens_per_chunk(head.weight)
    log_probs = torch.zeros(labels.shape, dtype=torch.float32, device=labels.device)
    log_probs[keep] = torch.cat(
        [
            -nn.functional.cross_entropy(head(h).float(), y, reduction="none")
            for h, y in zip(hidden_states[keep].split(size), labels[keep].split(size), strict=True)  # (N, D), (N)
        ]
    )
    return log_probs


__all__ = ["token_log_probs"]
