# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""Label-smoothed cross-entropy (section 5.4) that never holds all the logits.

Shapes: `N` target tokens without padding, `C` tokens in a chunk, `D` d_model, `V` vocabulary.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

LOSS_SETTINGS = {"label_smoothing", "loss_function", "num_items_in_batch", "return_logits"}


def is_plain(linear: Any) -> bool:
    """Whether a layer is its weight and bias alone; an adapter in its place, or a hook on it, must be called."""
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    return type(linear) is nn.Linear and not any(hooks) and "forward" not in vars(linear)


class LossOutput(NamedTuple):
    """Scalars: `loss` (smoothed, differentiable) and `nll` (plain, detached), both in nats a token, float32."""

    loss: torch.Tensor
    nll: torch.Tensor


def project_and_score(
    head: Any, hidden_states: torch.Tensor, labels: torch.Tensor | None, training: bool,
    return_logits: bool | None = None, loss_function: Any = None, **settings: Any,
) -> dict[str, torch.Tensor | None]:  # fmt: skip
    """
    A language model's last step: `logits` `(..., V)` of `hidden_states` `(..., D)`, and `loss` and `nll` of labels, as
    `smoothed_cross_entropy` gives them. Unless `return_logits` says otherwise, training with labels keeps no logits.
    A `loss_function(head, hidden_states, labels, **settings)` computes the loss in our place.
    """
    if loss_function is not None:
        return {**loss_function(head, hidden_states, labels, **settings)._asdict(), "logits": None}
    fused = is_plain(head) and not torch.compiler.is_compiling()  # no graph can hold a loop as long as the labels say
    logits = None
    if labels is None or return_logits or (return_logits is None and not training) or not fused:
        logits = head(hidden_states)  # (..., V)
    if labels is None:
        return {"loss": None, "nll": None, "logits": logits}
    if logits is None:
        scored = projected_cross_entropy(hidden_states, head.weight, labels, head.bias, **settings)
    else:
        scored = smoothed_cross_entropy(logits, labels, **settings)
    return {**scored._asdict(), "logits": logits}


def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None, ignore_index: int = -100,
) -> LossOutput:  # fmt: skip
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
    hidden_states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, bias: torch.Tensor | None = None,
    label_smoothing: float = 0.0, num_items_in_batch: int | torch.Tensor | None = None, ignore_index: int = -100,
    chunk_size: int | None = None, penalty: Any = None,
) -> LossOutput:  # fmt: skip
    """
    `smoothed_cross_entropy` of `hidden_states @ weight.T + bias`, a chunk of tokens at a time.

    Padded positions are dropped first. Each chunk's gradient is computed beside its loss, while its logits are there,
    so the backward pass projects nothing again and memory holds one chunk of logits.

    Args:
        hidden_states: the decoder's output, `(..., D)`.
        weight, bias: the output projection, `(V, D)` and `(V)`.
        chunk_size: tokens in a chunk, at least 1 (a `ValueError`); None picks one.
        penalty: called with a chunk's logits and its probabilities, `(C, V)`, it gives what the summed loss is to have
            besides, and adds the gradient of that by the logits to the probabilities.
        others: as in `smoothed_cross_entropy`.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing={label_smoothing}: must be from 0 to 1")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}: must be at least 1 token")
    keep = labels != ignore_index
    denominator = _denominator(keep, num_items_in_batch)
    device_type = hidden_states.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else weight.dtype
    tensors = [hidden_states[keep], weight, bias]  # (N, D), (V, D), (V)
    if not torch.is_grad_enabled():  # the function below can't see it, and would compute gradients all the same
        tensors = [None if x is None else x.detach() for x in tensors]
    settings = (labels[keep], denominator, label_smoothing, chunk_size or tokens_per_chunk(weight), penalty, dtype)
    return LossOutput(*_ProjectedCrossEntropy.apply(*tensors, *settings))


def _denominator(keep: torch.Tensor, num_items_in_batch: int | torch.Tensor | None) -> torch.Tensor:
    """Tokens that the summed loss is divided by: at least 1, so that a batch of padding costs 0, not NaN."""
    given = num_items_in_batch is not None
    return (torch.as_tensor(num_items_in_batch, device=keep.device) if given else keep.sum()).clamp(min=1)


def tokens_per_chunk(weight: torch.Tensor) -> int:
    """2^23 logits are 32 MB in float32, which a CPU's allocator still hands out again; a GPU wants larger products."""
    return min(max(64, 2**23 // len(weight)), 512) if weight.device.type == "cpu" else max(64, 2**27 // len(weight))


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The smoothed loss and the plain one, summed over tokens and divided by `denominator`; gradients of the first."""

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, denominator, label_smoothing, chunk_size, penalty, dtype):
        V, spread = len(weight), label_smoothing / len(weight)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        ctx.dtypes = [None if x is None else x.dtype for x in (hidden_states, weight, bias)]
        hidden_states, weight, bias = (None if x is None else x.to(dtype) for x in (hidden_states, weight, bias))
        # What is summed over many chunks is summed in float32, whatever the products' precision.
        wide = {"dtype": torch.float32, "device": weight.device}
        nll, uniform, extra = torch.zeros(3, **wide)  # sums of -log p(label), of its mean over v, of penalties
        grad_hidden = torch.empty_like(hidden_states) if needs_hidden else None  # (N, D)
        grad_weight = torch.zeros_like(weight, **wide) if needs_weight else None  # (V, D)
        grad_bias = torch.zeros_like(bias, **wide) if needs_bias else None  # (V)
        # All chunks use the same memory: fresh pages cost more than the arithmetic on them.
        logits = weight.new_empty(min(chunk_size, len(labels)), V)
        probs = logits if dtype == torch.float32 and penalty is None else torch.empty_like(logits, **wide)

        with torch.autocast(weight.device.type, enabled=False):
            for start in range(0, len(labels), chunk_size):
                rows = slice(start, start + chunk_size)
                h, y = hidden_states[rows], labels[rows, None]  # (C, D), (C, 1)
                z, p = logits[: len(h)], probs[: len(h)]  # (C, V)
                torch.mm(h, weight.t(), out=z) if bias is None else torch.addmm(bias, h, weight.t(), out=z)
                if p is not z:
                    p.copy_(z)
                label, mean = p.gather(1, y), p.mean(1, keepdim=True)  # (C, 1)
                torch.softmax(p, 1, out=p)
                log_p = p.gather(1, y).log()
                if log_p.min() < -60:  # float32 holds no such p, or hardly
                    log_p = nn.functional.linear(h, weight, bias).float().log_softmax(1).gather(1, y)
                nll -= log_p.sum()
                uniform += (label - log_p - mean).sum()
                extra += 0 if penalty is None else penalty(z, p)
                if not any(ctx.needs_input_grad):
                    continue
                # d loss / d logits = softmax - smoothed target; of the latter what all tokens share comes at the end.
                p.scatter_add_(1, y, p.new_full(y.shape, label_smoothing - 1))
                if grad_bias is not None:
                    grad_bias += p.sum(0)
                if p is not z:
                    z.copy_(p)
                if grad_hidden is not None:
                    torch.mm(z, weight, out=grad_hidden[rows])
                if grad_weight is not None:  # a few rows at a time, whose products stay in the cache
                    for rows_of_grad, columns in zip(grad_weight.split(4096), z.split(4096, 1), strict=True):
                        rows_of_grad += columns.t() @ h
        for gradient, factor in ((grad_hidden, weight), (grad_weight, hidden_states)):
            if spread and gradient is not None:
                gradient -= spread * factor.sum(0, dtype=torch.float32)
        if spread and grad_bias is not None:
            grad_bias -= spread * len(labels)
        now, ctx.later = (1, denominator) if dtype == torch.float16 else (denominator, 1)  # once the loss is scaled up
        ctx.save_for_backward(*(x if x is None else x.div_(now) for x in (grad_hidden, grad_weight, grad_bias)))
        loss = (1 - label_smoothing) * nll + label_smoothing * uniform + extra
        ctx.mark_non_differentiable(nll := nll / denominator)
        return loss / denominator, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, _):
        is_one = (grad_loss := grad_loss / ctx.later).device.type == "cpu" and grad_loss.item() == 1  # nothing to copy
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        gradients = [None if x is None else (x if is_one else x * grad_loss).to(dtype) for x, dtype in pairs]
        return (*gradients, None, None, None, None, None, None)
