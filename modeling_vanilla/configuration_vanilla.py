# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""The configuration of the Transformer of "Attention Is All You Need" and of its close relatives."""

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

CHOICES = {
    "norm_position": ("post", "pre"),
    "position_encoding": ("sinusoidal", "learned", "rotary", "alibi"),
    "sinusoid_layout": ("interleaved", "halves", "tensor2tensor"),
    "tied_embeddings": ("all", "decoder", "source_target", "none"),
    "activation_function": tuple(sorted(ACT2FN)),
}


class VanillaConfigError(StrictDataclassError, ValueError):
    """A value that the config refuses. What `strict` raises by itself is no `ValueError`."""


class DefaultBackend(str):
    """An attention backend that nobody asked for by name: a call may take another where that is faster."""


def _refuses_with_value_error(cls: type) -> type:
    """Makes a strict dataclass raise `VanillaConfigError` when built, assigned to or validated."""

    def unwrapped(method: Callable) -> Callable:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except StrictDataclassError as error:
                raise VanillaConfigError(str(error.__cause__ or error)) from error.__cause__

        return call

    for name in ("__init__", "__setattr__", "validate"):
        setattr(cls, name, unwrapped(getattr(cls, name)))
    return cls


@_refuses_with_value_error
@strict
class VanillaConfig(PreTrainedConfig):
    r"""
    Describes one member of the family; `VanillaConfig()` is the paper's base model (Vaswani et al. 2017, table 3,
    row "base") with a vocabulary of 37,000: 63,082,496 parameters. Sections and tables below are the paper's.

    Args:
        vocab_size (`int`, defaults to 37000): rows of the source embedding; of the target's too unless
            `decoder_vocab_size` is given (section 5.1).
        decoder_vocab_size (`int`, *optional*): rows of the target embedding and of the output projection.
        d_model (`int`, defaults to 512): width of every layer's input and output (section 3.1).
        encoder_layers, decoder_layers (`int`, defaults to 6): N in section 3.1.
        encoder_attention_heads, decoder_attention_heads (`int`, defaults to 8): h in section 3.2.2.
        d_k, d_v (`int`, *optional*): size of a key and of a value per head (table 3, row B); `d_model / heads` unless
            given. They may differ from each other.
        encoder_ffn_dim, decoder_ffn_dim (`int`, defaults to 2048): d_ff in section 3.3.
        activation_function (`str`, defaults to `"relu"`): between the two linear maps of section 3.3.
        dropout (`float`, defaults to 0.1): P_drop, on each sub-layer's output and on the embeddings (section 5.4).
        attention_dropout, activation_dropout (`float`, defaults to 0.0): on the attention weights and inside the
            feed-forward network; the paper has neither.
        norm_position (`"post"` or `"pre"`, defaults to `"post"`): `LayerNorm(x + Sublayer(x))` of section 3.1, or
            `x + Sublayer(LayerNorm(x))` with one more norm at the end of each stack.
        layer_norm_eps (`float`, defaults to 1e-5): PyTorch's default.
        position_encoding (`"sinusoidal"`, `"learned"`, `"rotary"` or `"alibi"`, defaults to `"sinusoidal"`): section
            3.5's two, added to the embeddings; or queries and keys turned by their positions (RoFormer, Su et al.
            2021), or attention scores lowered by distance (ALiBi, Press et al. 2022), both in self attention alone.
        sinusoid_layout (`"interleaved"`, `"halves"` or `"tensor2tensor"`): where sine and cosine lie, of rotations
            too. `interleaved` is the formula of section 3.5; `halves` puts all sines before all cosines (Marian);
            `tensor2tensor` does too, with wavelengths spaced by d/2 - 1 (the authors' code, and fairseq's).
        position_offset (`int`, defaults to 0): the number of the first position that is added (fairseq: pad + 1).
        max_position_embeddings (`int`, defaults to 1024): positions tabulated; only a learned table ends there.
        scale_embedding (`bool`, defaults to True): multiply embeddings by sqrt(d_model) (section 3.4).
        use_bias (`bool`, defaults to True): biases of the linear maps in attention and feed-forward networks.
        output_bias (`bool`, defaults to False): a bias on the output projection.
        tied_embeddings (`"all"`, `"decoder"`, `"source_target"` or `"none"`): which of the source embedding, target
            embedding and output projection are one matrix: all three (section 3.4), the last two, the first two, none.
        tie_word_embeddings (`bool`, defaults to True): the library's master switch; False unties everything.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`): 0, 1, 2 and 1, as our tokenizers do.
        use_cache (`bool`, defaults to True): keep keys and values while generating.
        is_encoder_decoder (`bool`, defaults to True): False in the config of an encoder or a decoder alone.
        image_size, patch_size, num_channels (`int`, default to 224, 16 and 3): of images, in pixels; ViT's defaults.

    Raises:
        ValueError: when a value is out of range or two values don't fit, naming the value, the limit and the remedy.
    """

    model_type = "vanilla"
    keys_to_ignore_at_inference = ["cache", "nll"]  # noqa: RUF012  (the library's attribute)
    attribute_map = {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads",  # noqa: RUF012
                     "num_hidden_layers": "encoder_layers"}  # fmt: skip

    vocab_size: int = 37000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    norm_position: str = "post"
    layer_norm_eps: float = 1e-5
    position_encoding: str = "sinusoidal"
    sinusoid_layout: str = "interleaved"
    position_offset: int = 0
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    use_bias: bool = True
    output_bias: bool = False
    tied_embeddings: str = "all"
    tie_word_embeddings: bool = True
    pad_token_id: int = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int = 1
    is_encoder_decoder: bool = True
    use_cache: bool = True
    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3

    def __post_init__(self, **kwargs: Any) -> None:
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The library's; where no side is named, generation asks for the vocabulary that scores and drafts are of."""
        config = super().get_text_config(decoder, encoder)
        if config is self and self.is_encoder_decoder and self.decoder_vocab_size != self.vocab_size:
            config = copy.copy(self)
            config.vocab_size = self.decoder_vocab_size
        return config

    def validate_architecture(self) -> None:
        """Checks values, and values against each other; the library calls it too, when a config is saved."""
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(choices)}")
        at_least_one = ("vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers",
                        "encoder_attention_heads", "decoder_attention_heads", "d_k", "d_v", "encoder_ffn_dim",
                        "decoder_ffn_dim", "max_position_embeddings", "image_size", "patch_size",
                        "num_channels")  # fmt: skip
        for name in at_least_one:
            value, most = getattr(self, name), 10_000 if "layers" in name else 10**9
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name}={value}: must be at least 1 and at most {most:,}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0 and below 1")
        if not self.layer_norm_eps > 0:
            raise ValueError(f"layer_norm_eps={self.layer_norm_eps}: must be above 0")
        for side in ("encoder", "decoder"):
            heads = getattr(self, f"{side}_attention_heads")
            if (self.d_k is None or self.d_v is None) and self.d_model % heads:
                raise ValueError(
                    f"d_model={self.d_model} is not a multiple of {side}_attention_heads={heads}: "
                    "change one of them, or give d_k and d_v"
                )
            d_k = self.d_k or self.d_model // heads
            name, width = ("d_model", self.d_model) if self.position_encoding == "sinusoidal" else ("d_k", d_k)
            waves = self.position_encoding in ("sinusoidal", "rotary")
            if waves and width % 2:
                raise ValueError(f"{name}={width} is odd: sines and cosines come in pairs, so make it even")
            if waves and self.sinusoid_layout == "tensor2tensor" and width < 4:
                raise ValueError(f"{name}={width}: sinusoid_layout='tensor2tensor' needs at least 4")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size={self.image_size} is not a multiple of patch_size={self.patch_size}: change one of them"
            )
        if self.position_offset < 0:
            raise ValueError(f"position_offset={self.position_offset}: must be at least 0")
        if self.tied_embeddings in ("all", "source_target") and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"tied_embeddings={self.tied_embeddings!r} shares one matrix, but vocab_size={self.vocab_size} and "
                f"decoder_vocab_size={self.decoder_vocab_size}: make them equal, or use 'decoder' or 'none'"
            )
        target = self.decoder_vocab_size or self.vocab_size
        for name, limit in (("pad_token_id", min(self.vocab_size, target)), ("decoder_start_token_id", target)):
            token = getattr(self, name)
            if not 0 <= token < limit:
                raise ValueError(f"{name}={token} is outside the vocabulary: must be from 0 to {limit - 1}")
