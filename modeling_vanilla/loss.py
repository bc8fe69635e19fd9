# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""Label-smoothed cross-entropy (section 5.4) that never holds all the logits.

Shapes: `N` target tokens without padding, `C` tokens in a chunk, `D` d_model, `V` vocabulary.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

LOSS_SETTINGS = {"label_smoothing", "num_items_in_batch", "return_logits"}


class LossOutput(NamedTuple):
    """Scalars: `loss` (smoothed, differentiable) and `nll` (plain, detached), both in nats a token, float32."""

    loss: torch.Tensor
    nll: torch.Tensor


def project_and_score(
    head: Any,
    hidden_states: torch.Tensor,
    labels: torch.Tensor | None,
    training: bool,
    return_logits: bool | None = None,
    **settings: Any,
) -> dict[str, torch.Tensor | None]:
    """
    A language model's last step: `logits` `(..., V)` of `hidden_states` `(..., D)`, and `loss` and `nll` of labels, as
    `smoothed_cross_entropy` gives them. Unless `return_logits` says otherwise, training with labels keeps no logits.
    """
    # An adapter in the place of the projection, or a hook on it, must be called: then it is.
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks, head._backward_pre_hooks)
    is_plain = type(head) is nn.Linear and not any(hooks) and "forward" not in vars(head)
    is_plain &= not torch.compiler.is_compiling()  # no graph can hold a loop as long as the labels say
    logits = None
    if labels is None or return_logits or (return_logits is None and not training) or not is_plain:
        logits = head(hidden_states)  # (..., V)
    if labels is None:
        return {"loss": None, "nll": None, "logits": logits}
    if logits is None:
        scored = projected_cross_entropy(hidden_states, head.weight, labels, head.bias, **settings)
    else:
        scored = smoothed_cross_entropy(logits, labels, **settings)
    return {**scored._asdict(), "logits": logits}


def smoothed_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
    ignore_index: int = -100,
) -> LossOutput:
    """
    The loss of logits `(..., V)` that are there anyway (in evaluation), for labels `(...)`.

    The target distribution gives 1 - ε to the label and spreads ε evenly over the whole vocabulary, the label and the
    padding token included: the convention of PyTorch and of the library's LabelSmoother. Loss per token:
    (1 - ε) · -log p(label) + ε / V · Σ_v -log p(v).

    Args:
        label_smoothing: ε, from 0 to 1.
        num_items_in_batch: tokens to divide the sum by, where a batch comes in several pieces; None: those here.
        ignore_index: the label where nothing is to be predicted.
    """
    logits, labels = logits.float().flatten(0, -2), labels.flatten()  # (N', V), (N')
    cross_entropy = partial(nn.functional.cross_entropy, logits, labels, ignore_index=ignore_index, reduction="sum")
    nll = cross_entropy()
    smoothed = cross_entropy(label_smoothing=label_smoothing) if label_smoothing else nll
    denominator = _denominator(labels != ignore_index, num_items_in_batch)
    return LossOutput(smoothed / denominator, nll.detach() / denominator)


def projected_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
    ignore_index: int = -100,
    chunk_size: int | None = None,
) -> LossOutput:
    """
    `smoothed_cross_entropy` of `hidden_states @ weight.T + bias`, a chunk of tokens at a time.

    Padded positions are dropped first. Each chunk's gradient is computed beside its loss, while its logits are still
    in the cache, so the backward pass projects nothing again and memory holds one chunk of logits.

    Args:
        hidden_states: the decoder's output, `(..., D)`.
        weight, bias: the output projection, `(V, D)` and `(V)`.
        chunk_size: tokens in a chunk, at least 1 (a `ValueError`); None picks one whose logits stay in a CPU's cache.
        others: as in `smoothed_cross_entropy`.
    """
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}: must be at least 1 token")
    keep = labels != ignore_index
    denominator = _denominator(keep, num_items_in_batch)
    device_type = hidden_states.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else weight.dtype
    tensors = [hidden_states[keep], weight, bias]  # (N, D), (V, D), (V)
    if not torch.is_grad_enabled():  # the function below can't see it, and would compute gradients all the same
        tensors = [None if x is None else x.detach() for x in tensors]
    chunk_size = chunk_size or tokens_per_chunk(weight)
    loss, nll = _ProjectedCrossEntropy.apply(*tensors, labels[keep], label_smoothing, chunk_size, dtype)
    return LossOutput(loss / denominator, nll / denominator)


def _denominator(keep: torch.Tensor, num_items_in_batch: int | torch.Tensor | None) -> torch.Tensor:
    """Tokens that the summed loss is divided by: at least 1, so that a batch of padding costs 0, not NaN."""
    if num_items_in_batch is None:
        return keep.sum().clamp(min=1)
    return torch.as_tensor(num_items_in_batch, device=keep.device).clamp(min=1)


def tokens_per_chunk(weight: torch.Tensor) -> int:
    """2^21 logits are 8 MB in float32, around what a core keeps close; a GPU wants larger products."""
    return max(64, (2**21 if weight.device.type == "cpu" else 2**27) // len(weight))


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Sums over tokens of the smoothed loss and of the plain one; gradients of the first."""

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, label_smoothing, chunk_size, dtype):
        vocab_size = len(weight)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        # What is summed over many chunks is summed in float32, whatever the products' precision.
        loss, nll = hidden_states.new_zeros(2, dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden_states, dtype=dtype) if needs_hidden else None  # (N, D)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None  # (V, D)
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias else None  # (V)
        ctx.dtypes = [None if x is None else x.dtype for x in (hidden_states, weight, bias)]
        hidden_states, weight, bias = (None if x is None else x.to(dtype) for x in (hidden_states, weight, bias))

        with torch.autocast(hidden_states.device.type, enabled=False):
            for start in range(0, len(labels), chunk_size):
                rows = slice(start, start + chunk_size)
                h, y = hidden_states[rows], labels[rows, None]  # (C, D), (C, 1)
                logits = nn.functional.linear(h, weight, bias)  # (C, V)
                log_probs = logits.log_softmax(-1, dtype=torch.float32)  # (C, V)
                chunk_nll = -log_probs.gather(1, y).sum()
                nll += chunk_nll
                loss += (1 - label_smoothing) * chunk_nll
                if label_smoothing:
                    loss -= label_smoothing / vocab_size * log_probs.sum()
                if not any(ctx.needs_input_grad):
                    continue
                # d loss / d logits = softmax - smoothed target
                gradient = log_probs.exp_()  # (C, V)
                if label_smoothing:
                    gradient -= label_smoothing / vocab_size
                gradient.scatter_add_(1, y, gradient.new_full(y.shape, label_smoothing - 1))
                if grad_bias is not None:
                    grad_bias += gradient.sum(0)
                gradient = gradient.to(dtype)
                if grad_hidden is not None:
                    torch.mm(gradient, weight, out=grad_hidden[rows])
                if grad_weight is not None:
                    grad_weight += gradient.t() @ h
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, _):
        gradients = [
            None if gradient is None else (gradient * grad_loss).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*gradients, None, None, None, None)


__all__ = ["LOSS_SETTINGS", "LossOutput", "project_and_score", "projected_cross_entropy", "smoothed_cross_entropy"]
