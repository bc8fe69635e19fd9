"""R-Drop (Liang et al. 2021, arXiv 2106.14448): two passes with different dropout are to agree."""

from functools import partial
from typing import Any

import torch

from modeling_vanilla.loss import (
    LossOutput,
    is_plain,
    projected_cross_entropy,
    smoothed_cross_entropy,
    tokens_per_chunk,
)


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
        head: the output projection, called as a layer where it is more than a weight and a bias.
        hidden_states: `(2 B, T, D)`, what `twice` gives.
        labels: `(2 B, T)`.
        settings: `label_smoothing`, and `num_items_in_batch`, the tokens of one pass over the whole update.
    """
    first = labels.chunk(2)[0]
    keep = first != -100
    counted = settings.pop("num_items_in_batch", None)
    tokens = keep.sum() if counted is None else torch.as_tensor(counted, device=keep.device)
    settings["num_items_in_batch"] = 2 * tokens  # the mean of two passes
    # A token's two passes follow each other, (N, 2), so that every chunk of an even size has both.
    pairs = torch.stack([half[keep] for half in hidden_states.chunk(2)], 1).flatten(0, 1)
    both = first[keep].repeat_interleave(2)
    if is_plain(head) and not torch.compiler.is_compiling():
        return projected_cross_entropy(
            pairs, head.weight, both, head.bias, chunk_size=max(2, tokens_per_chunk(head.weight) // 4 * 2),
            penalty=partial(_disagreement, alpha / 2), **settings,
        )  # fmt: skip
    logits = head(pairs)
    scored = smoothed_cross_entropy(logits, both, **settings)
    log_p, log_q = logits.float().log_softmax(-1).unflatten(0, (-1, 2)).unbind(1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()
    return LossOutput(scored.loss + alpha / 4 * divergence / tokens.clamp(min=1), scored.nll)


def _disagreement(weight: float, logits: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """
    weight · Σ (KL(p ‖ q) + KL(q ‖ p)) over rows that are p and q in turn, `(C, V)`, its gradient added to `probs`.

    Both are invariant to a constant in log p - log q, so that the logits' difference d serves: the sum is Σ (p - q) d,
    and its gradient by p's logits p (d - Σ p d) + p - q.
    """
    p, q = probs[::2], probs[1::2]  # (C / 2, V)
    difference = logits[::2].to(probs.dtype, copy=True).sub_(logits[1::2])
    apart = p - q
    under_p, under_q = (torch.linalg.vecdot(x, difference)[:, None] for x in (p, q))  # (C / 2, 1)
    p.addcmul_(p, difference.sub_(under_p), value=weight).add_(apart, alpha=weight)
    q.addcmul_(q, difference.sub_(under_q - under_p), value=-weight).sub_(apart, alpha=weight)
    return weight * (under_p - under_q).sum()


__all__ = ["r_drop_loss", "twice"]
