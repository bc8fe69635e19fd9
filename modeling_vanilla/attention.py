# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""Attention (section 3.2): one class for the encoder, the decoder and what joins them, on every backend.

Shapes: `B` sentences, `T` query and `S` key positions, `D` d_model, `H` heads, `K` d_k, `V` d_v.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .configuration_vanilla import DefaultBackend, VanillaConfig
from .dropout import dropout as drop
from .loss import is_plain
from .positions import rotate

logger = logging.get_logger(__name__)
MAX_EAGER_LENGTH = 256


def check_backend(name: str, config: VanillaConfig) -> None:
    """Refuses a backend that can't compute this config's attention: a `ValueError` that names the one to use."""
    if name == "eager" or "|" in name:  # the second kind keeps masks and cache for itself
        return
    remedy = "use attn_implementation='sdpa' or 'eager'"
    takes = inspect.signature(ALL_ATTENTION_FUNCTIONS[name]).parameters
    if config.position_encoding == "alibi" and "position_bias" not in takes:
        raise ValueError(f"{name} can't add ALiBi's bias, for its function takes no position_bias: {remedy}")
    for heads in (config.encoder_attention_heads, config.decoder_attention_heads):
        d_k, d_v = (size or config.d_model // heads for size in (config.d_k, config.d_v))
        if "flash" in name and d_k != d_v:
            raise ValueError(f"{name} can't have keys of size d_k={d_k} with values of d_v={d_v}: {remedy}")
    if name not in ALL_MASK_ATTENTION_FUNCTIONS and "/" not in name:
        raise ValueError(
            f"{name} would see padding and the future, for it has no mask: register one beside it with "
            f"AttentionMaskInterface.register({name!r}, transformers.masking_utils.eager_mask), or {remedy}"
        )


def backend_of_call(backend: str, hidden_states: torch.Tensor, num_keys: int) -> str:
    """
    The backend that one call takes: the config's; but where none was asked for, eager for 2 to `MAX_EAGER_LENGTH`
    positions of half precision on a CPU, where sdpa takes longer up to there (benchmarks/README.md).
    """
    if type(backend) is not DefaultBackend or torch.compiler.is_compiling():
        return backend
    is_half = hidden_states.device.type == "cpu" and hidden_states.dtype in (torch.bfloat16, torch.float16)
    if not is_half or hidden_states.shape[1] == 1 or num_keys > MAX_EAGER_LENGTH:
        return backend
    logger.info_once(f"attention in half precision: eager up to {MAX_EAGER_LENGTH} positions, {backend} above")
    return "eager"


def masks_nothing(attention_mask: Any, config: VanillaConfig) -> bool:
    """Whether a backend that can do without a mask needs none, for there is no padding."""
    can_do_without = config._attn_implementation in ("eager", "sdpa")
    return can_do_without and (attention_mask is None or (attention_mask.ndim == 2 and all_true(attention_mask)))


def queries_with_keys(attention_mask: Any) -> torch.Tensor | None:
    """
    Which queries see any key: `(B, 1)` from a `(B, S)` mask, `(B, T)` from a `(B, 1, T, S)` one, true or added to the
    scores; None without such a mask, or where all do (which a CPU looks at, and a GPU would have to wait for).
    """
    if not isinstance(attention_mask, torch.Tensor):
        return None
    if attention_mask.ndim == 4:
        if attention_mask.dtype != torch.bool:
            attention_mask = attention_mask > torch.finfo(attention_mask.dtype).min / 2
        has_keys = attention_mask[:, 0].any(-1)  # (B, T)
    else:
        has_keys = attention_mask.bool().any(-1, keepdim=True)  # (B, 1)
    return None if all_true(has_keys) else has_keys


def all_true(x: torch.Tensor) -> bool:
    """Whether all are, where that can be known for nothing."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and bool(x.all())


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,  # (B, H, T, K)
    key: torch.Tensor,  # (B, H, S, K)
    value: torch.Tensor,  # (B, H, S, V)
    attention_mask: torch.Tensor | None,  # (B or 1, 1, T, S), added to the scores, or true where a key is seen
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,  # (1, H, T, S)
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention, equation 1: softmax(Q Kᵀ / sqrt(d_k)) V, as it is written."""
    scores = torch.matmul(query, key.transpose(2, 3))  # (B, H, T, S), in float32 (at least) up to the weights
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).mul_(scaling)
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores += attention_mask
    S = scores.shape[-1]
    if S < 16 and scores.device.type == "cpu" and not torch.compiler.is_compiling():
        # PyTorch's softmax takes ten times as long for rows shorter than a vector register.
        scores = nn.functional.pad(scores, (0, 16 - S), value=-torch.inf)
    weights = nn.functional.softmax(scores, dim=-1)[..., :S].to(query.dtype)  # (B, H, T, S)
    weights = drop(weights, dropout, module.training)
    output = torch.matmul(weights, value)  # (B, H, T, V)
    return output.transpose(1, 2).contiguous(), weights  # (B, T, H, V), (B, H, T, S)


class VanillaAttention(nn.Module):
    """
    Multi-head attention, section 3.2.2: Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    Queries come from `hidden_states`; keys and values from the same place, or from `key_value_states` (the encoder's
    output, in the decoder's cross attention).
    """

    def __init__(self, config: VanillaConfig, num_heads: int, *, is_causal: bool = False, layer_idx: int | None = None):
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.d_k = config.d_k or config.d_model // num_heads
        self.d_v = config.d_v or config.d_model // num_heads
        self.scaling = self.d_k**-0.5
        self.dropout = config.attention_dropout
        self.is_causal = is_causal  # read by the sdpa and flash backends, which take a missing one for True
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=config.use_bias)
        self.k_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=config.use_bias)
        self.v_proj = nn.Linear(config.d_model, num_heads * self.d_v, bias=config.use_bias)
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            # Read when weights are drawn: the three count as one matrix (3D, D), as in torch.nn.MultiheadAttention.
            setattr(projection, "init_gain", 2**-0.5)  # noqa: B010
        self.out_proj = nn.Linear(num_heads * self.d_v, config.d_model, bias=config.use_bias)

    def project(self, x: torch.Tensor, *projections: nn.Linear) -> Sequence[torch.Tensor]:
        """Each projection of `x` `(B, L, D)`: `(B, L, H * size)`. In training they are one product if they may be."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or not all(map(is_plain, projections)):
            return [projection(x) for projection in projections]
        weight = torch.cat([p.weight for p in projections])
        bias = None if self.q_proj.bias is None else torch.cat([p.bias for p in projections])
        return nn.functional.linear(x, weight, bias).split([p.out_features for p in projections], dim=-1)

    def heads(self, x: torch.Tensor, size: int) -> torch.Tensor:
        """Splits `(B, L, H * size)` into heads: `(B, H, L, size)`."""
        return x.view(*x.shape[:2], self.num_heads, size).transpose(1, 2)

    def remember(self, key: torch.Tensor, value: torch.Tensor, cache: Cache | None, is_cross: bool) -> Sequence:
        """Keys `(B, H, S, K)` and values `(B, H, S, V)` put into the cache: all that it has now."""
        if cache is None:
            return key, value
        if isinstance(cache, EncoderDecoderCache):
            cache.is_updated[self.layer_idx] = is_cross or cache.is_updated.get(self.layer_idx, False)
            cache = cache.cross_attention_cache if is_cross else cache.self_attention_cache
        return cache.update(key, value, self.layer_idx)

    def forward(
        self, hidden_states: torch.Tensor, key_value_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None, cache: Cache | None = None, has_keys: torch.Tensor | None = None,
        rotation: torch.Tensor | None = None, attn_implementation: str | None = None, **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """
        Args:
            hidden_states: `(B, T, D)`.
            key_value_states: `(B, S, D)`, or None for self attention. It may be `(B / n, S, D)`: n neighbours, such as
                a sentence's beams, then look at the same source as if their queries stood in one row.
            attention_mask: what the library's mask functions made for this backend, or None when nothing is masked
                (or when `is_causal` says it all).
            cache: keys and values of earlier positions; updated in place.
            has_keys: `(B, T)` or `(B, 1)`, false where a query has no key to look at: its output is 0, on any backend.
            rotation: `(T, K)` or `(B, T, K)`, the positions' sinusoids that queries and keys are turned by.
            attn_implementation: the backend of this call, if not the config's.

        Returns the output `(B, T, D)`, and the attention weights `(B, H, T, S)` on the eager backend (else None).
        """
        B, T, D = hidden_states.shape
        is_cross_attention = key_value_states is not None
        if key_value_states is not None:
            query = self.q_proj(hidden_states.reshape(key_value_states.shape[0], -1, D))
        else:
            query, key, value = self.project(hidden_states, self.q_proj, self.k_proj, self.v_proj)
        query = self.heads(query, self.d_k)  # (B, H, T, K)
        if rotation is not None:
            query = rotate(query, rotation, self.config.sinusoid_layout)
        if is_cross_attention and isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]  # the source doesn't change: projected once
            key, value = layer.keys, layer.values
        else:
            if key_value_states is not None:
                key, value = self.project(key_value_states, self.k_proj, self.v_proj)
            key = self.heads(key, self.d_k)  # (B, H, S, K)
            value = self.heads(value, self.d_v)  # (B, H, S, V)
            if rotation is not None:
                key = rotate(key, rotation, self.config.sinusoid_layout)
            key, value = self.remember(key, value, cache, is_cross_attention)

        backend = attn_implementation or self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(backend, eager_attention_forward)
        settings = {"dropout": self.dropout if self.training else 0.0, "scaling": self.scaling, **kwargs}
        output, weights = attend(self, query, key, value, attention_mask, **settings)  # (B, T, H, V)
        if has_keys is not None:
            output = output.masked_fill(~has_keys[:, :, None, None], 0)
            weights = None if weights is None else weights.masked_fill(~has_keys[:, None, :, None], 0)
        if weights is not None and weights.shape[0] != B:
            weights = weights.unflatten(2, (-1, T)).transpose(1, 2).flatten(0, 1)  # (B, H, T, S)
        return self.out_proj(output.reshape(B, T, self.num_heads * self.d_v)), weights
