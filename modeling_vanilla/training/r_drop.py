"""R-Drop (Liang et al. 2021, arXiv 2106.14448): two passes with different dropout are to agree."""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from modeling_vanilla.loss import LossOutput, tokens_per_chunk


def twice(inputs: dict[str, Any]) -> dict[str, Any]:
    """A batch after itself: its tensors `(B, ...)` become `(2 B, ...)`, whose halves get dropout masks of their own."""
    return {name: torch.cat((x, x)) if isinstance(x, torch.Tensor) and x.ndim else x for name, x in inputs.items()}


def r_drop_loss(
    alpha: float, head: Any, hidden_states: torch.Tensor, labels: torch.Tensor, **settings: Any
) -> LossOutput:
    """
    Equation 4, halved, so that it is the plain loss where the passes agree: with p and q the two passes' distributions,
    the mean of their smoothed cross-entropies and α / 4 · (KL(p ‖ q) + KL(q ‖ p)), over the tokens of one pass.

    Args:
        alpha: α; 5 for translation in that paper.
        head: the output projection, called as a layer.
        hidden_states: `(2 B, T, D)`, what `twice` gives.
        labels: `(2 B, T)`.
        settings: `label_smoothing`, and `num_items_in_batch`, the tokens of one pass over the whole update.
    """
    first = labels.chunk(2)[0]
    keep = first != -100
    counted = settings.get("num_items_in_batch")
    tokens = keep.sum() if counted is None else torch.as_tensor(counted, device=keep.device)
    halves = [half[keep] for half in hidden_states.chunk(2)]  # (N, D) each
    score = partial(_score, head, alpha, settings.get("label_smoothing", 0.0))
    loss = nll = hidden_states.new_zeros((), dtype=torch.float32)
    size = max(1, tokens_per_chunk(head.weight) // 2)
    for h, g, y in zip(*(x.split(size) for x in (*halves, first[keep])), strict=True):
        one, two = checkpoint(score, h, g, y, use_reentrant=False)
        loss, nll = loss + one, nll + two.detach()
    return LossOutput(loss / tokens.clamp(min=1), nll / tokens.clamp(min=1))


def _score(
    head: Any, alpha: float, smoothing: float, h: torch.Tensor, g: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed over a chunk of tokens: the loss, and the mean plain loss."""
    p, q = (head(x).float().log_softmax(-1) for x in (h, g))  # (N, V)
    nll = -(p.gather(1, y[:, None]) + q.gather(1, y[:, None])).sum() / 2
    loss = nll
    if smoothing:
        loss = (1 - smoothing) * nll - smoothing * (p.mean(-1) + q.mean(-1)).sum() / 2
    return loss + alpha / 4 * ((p.exp() - q.exp()) * (p - q)).sum(), nll


__all__ = ["r_drop_loss", "twice"]
