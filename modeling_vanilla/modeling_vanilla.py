# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), layers to heads; sections are the paper's.

Shapes: `B` sentences, `S` source and `T` target positions, `D` d_model, `H` heads, `V` vocabulary.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple, logging
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import VanillaAttention, all_true, backend_of_call, check_backend, masks_nothing, queries_with_keys
from .configuration_vanilla import DefaultBackend, VanillaConfig
from .dropout import Dropout
from .loss import LOSS_SETTINGS, project_and_score
from .positions import LearnedPositions, SinusoidalPositions, alibi_bias, count_tokens

logger = logging.get_logger(__name__)
Settings = dict[str, Any] | None  # what one attention is told of masks and positions, the same in every layer
accept_old_cache_name = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")


def shift_tokens_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """Decoder inputs from labels `(B, T)`: the start token, then every label but the last; -100 becomes padding."""
    shifted = labels.new_full(labels.shape, decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill_(shifted == -100, pad_token_id)


def mask_of_keys(config: VanillaConfig, queries: torch.Tensor, mask: Any, keys: Any = None) -> Any:
    """The library's mask for queries `(B, T, D)` that see all keys `(B, S, D)` but padding; None if there is none."""
    return None if masks_nothing(mask, config) else create_bidirectional_mask(config, queries, mask, keys)


def check_sources(targets: int, states: torch.Tensor | None, mask: Any) -> None:
    """Refuses an encoder's output `(B, S, D)`, or its mask, that aren't those of so many targets, n of each source."""
    sources, told = tuple(getattr(states, "shape", (0, 0)))[:2], tuple(getattr(mask, "shape", ()))
    fit = sources[0] > 0 and targets % sources[0] == 0 and (len(told) != 2 or told == sources)
    if not fit and not torch.compiler.is_compiling():
        raise ValueError(f"{targets} targets, but sources of (B, S) = {sources}, and a mask of them of {told}")


class VanillaEncoderLayer(GradientCheckpointingLayer):
    """Section 3.1: self attention, then a position-wise feed-forward network, each in a residual connection."""

    side = "encoder"

    def __init__(self, config: VanillaConfig, layer_idx: int):
        super().__init__()
        D, ffn_dim = config.d_model, getattr(config, f"{self.side}_ffn_dim")
        self.pre_norm = config.norm_position == "pre"
        self.dropout = Dropout(config.dropout)
        self.self_attn = self.attention(config, layer_idx, is_causal=self.side == "decoder")
        self.self_attn_layer_norm = nn.LayerNorm(D, eps=config.layer_norm_eps)
        self.activation_fn = ACT2FN[config.activation_function]
        self.activation_dropout = Dropout(config.activation_dropout)
        self.fc1 = nn.Linear(D, ffn_dim, bias=config.use_bias)
        self.fc2 = nn.Linear(ffn_dim, D, bias=config.use_bias)
        self.final_layer_norm = nn.LayerNorm(D, eps=config.layer_norm_eps)

    def attention(self, config: VanillaConfig, layer_idx: int, is_causal: bool) -> VanillaAttention:
        num_heads = getattr(config, f"{self.side}_attention_heads")
        return VanillaAttention(config, num_heads, is_causal=is_causal, layer_idx=layer_idx)

    def residual(self, x: torch.Tensor, norm: nn.LayerNorm, sublayer: Callable) -> torch.Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))), or x + Dropout(Sublayer(LayerNorm(x))) with the norm in front."""
        if self.pre_norm:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Section 3.3, equation 2: max(0, x W_1 + b_1) W_2 + b_2."""
        return self.fc2(self.activation_dropout(self.activation_fn(self.fc1(x))))

    def forward(self, hidden_states: torch.Tensor, to_self: Settings = None, **kwargs: Any) -> torch.Tensor:
        """Maps `(B, S, D)` to `(B, S, D)`."""
        told = {**(to_self or {}), **kwargs}
        x = self.residual(hidden_states, self.self_attn_layer_norm, lambda x: self.self_attn(x, **told)[0])
        return self.residual(x, self.final_layer_norm, self.feed_forward)


class VanillaDecoderLayer(VanillaEncoderLayer):
    """Section 3.1: as the encoder's, with attention over the encoder's output (if there is one) in between."""

    side = "decoder"

    def __init__(self, config: VanillaConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.has_encoder = config.is_encoder_decoder
        if self.has_encoder:
            self.encoder_attn = self.attention(config, layer_idx, is_causal=False)
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self, hidden_states: torch.Tensor, to_self: Settings = None, encoder_hidden_states: torch.Tensor | None = None,
        to_encoder: Settings = None, cache: Cache | None = None, **kwargs: Any,
    ) -> torch.Tensor:  # fmt: skip
        """Maps `(B, T, D)` to `(B, T, D)`, given the encoder's output `(B, S, D)`."""
        told = {"cache": cache, **(to_self or {}), **kwargs}
        x = self.residual(hidden_states, self.self_attn_layer_norm, lambda x: self.self_attn(x, **told)[0])
        if self.has_encoder:
            told = {"cache": cache, **kwargs, **(to_encoder or {})}
            norm, states = self.encoder_attn_layer_norm, encoder_hidden_states
            x = self.residual(x, norm, lambda x: self.encoder_attn(x, states, **told)[0])
        return self.residual(x, self.final_layer_norm, self.feed_forward)


class VanillaPreTrainedModel(PreTrainedModel):
    """What all our models share: initial weights, and what the library may do with them."""

    config: VanillaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaEncoderLayer", "VanillaDecoderLayer"]  # noqa: RUF012
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    _can_compile_fullgraph = True

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """What the library asks whenever a backend is chosen."""
        backend = super().get_correct_attn_implementation(requested_attention, is_init_check)
        check_backend(backend, self.config)
        return DefaultBackend(backend) if requested_attention is None else backend

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        """The library's, which would pass over a name that is there already: as the default, not asked for."""
        self.config._attn_implementation_internal = str(self.config._attn_implementation)
        super().set_attn_implementation(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The authors' way: Glorot-uniform matrices, zero biases, embeddings from N(0, 1 / D), scaled by sqrt(D)."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=getattr(module, "init_gain", 1.0))
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, LearnedPositions):  # as loud as the tokens that they are added to
            init.normal_(module.weight, std=1.0 if self.config.scale_embedding else self.config.d_model**-0.5)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, SinusoidalPositions):  # loading leaves unsaved buffers empty
            init.copy_(module.table, module.rows(len(module.table), module.table.device))

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Where source and target have one vocabulary, all matrices follow; where they have two, the source's alone."""
        model, config = self.base_model, self.config
        if config.decoder_vocab_size != config.vocab_size:
            source = model.encoder.embed_tokens
            source = self._get_resized_embeddings(source, new_num_tokens, pad_to_multiple_of, mean_resizing)
            config.vocab_size = len(source.weight)
            return source
        resized = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        size, target = len(resized.weight), model.decoder.embed_tokens if hasattr(model, "decoder") else resized
        if len(target.weight) != size:
            model.decoder.embed_tokens = self._get_resized_embeddings(target, size, mean_resizing=mean_resizing)
        config.vocab_size = config.decoder_vocab_size = size
        return resized

    def resize_decoder_token_embeddings(self, new_num_tokens: int, mean_resizing: bool = True) -> nn.Embedding:
        """The other of two vocabularies, the target's: its embedding, and the output projection with its bias."""
        config, head = self.config, self.get_output_embeddings()
        if config.tied_embeddings in ("all", "source_target") or not config.is_encoder_decoder:
            raise ValueError("there is one vocabulary, or one side: use resize_token_embeddings")
        target = self._get_resized_embeddings(self.base_model.decoder.embed_tokens, new_num_tokens, None, mean_resizing)
        if head is not None:
            resized = self._get_resized_lm_head(head, new_num_tokens, mean_resizing=mean_resizing)
            self.set_output_embeddings(resized.requires_grad_(head.weight.requires_grad))
        config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        return target


class VanillaStack(VanillaPreTrainedModel):
    """What encoder and decoder have in common: embeddings (sections 3.4 and 3.5) below a stack of layers."""

    layer: type[VanillaEncoderLayer]
    embed_positions: LearnedPositions | SinusoidalPositions | None

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        D, P, side = config.d_model, config.max_position_embeddings, self.layer.side
        vocab_size = config.vocab_size if side == "encoder" else config.decoder_vocab_size or config.vocab_size
        layers = [self.layer(config, i) for i in range(getattr(config, f"{side}_layers"))]
        self.embed_tokens = nn.Embedding(vocab_size, D, config.pad_token_id)
        self.embed_scale = math.sqrt(D) if config.scale_embedding else 1.0
        if config.position_encoding == "sinusoidal":
            self.embed_positions = SinusoidalPositions(P, D, config.sinusoid_layout, config.position_offset)
        elif config.position_encoding == "learned":
            self.embed_positions = LearnedPositions(P, D, config.position_offset)
        elif config.position_encoding == "rotary":
            self.embed_positions = SinusoidalPositions(P, layers[0].self_attn.d_k, config.sinusoid_layout)
        else:  # ALiBi has no table
            self.embed_positions = None
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.layer_norm = nn.LayerNorm(D, eps=config.layer_norm_eps) if layers[0].pre_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def embed(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Token embeddings `(B, L, D)`, not yet scaled, of exactly one of the two arguments."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__}: give exactly one of input_ids and inputs_embeds")
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def add_positions(
        self, embeds: torch.Tensor, start: int | torch.Tensor, num_keys: int, position_ids: torch.Tensor | None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """
        Dropout(embeds · sqrt(D) + PE), `(B, L, D)`, summed in the table's float32; or self attention is told. Under
        autocast the stack works in its precision from here on: sublayers give it anyway, and need no copies then.
        """
        device = embeds.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else embeds.dtype
        x, L = embeds * self.embed_scale, embeds.shape[1]
        to_self: dict[str, Any] = {}
        if self.embed_positions is None:
            positions = start + torch.arange(L, device=embeds.device)
            bias = alibi_bias(getattr(self.config, f"{self.layer.side}_attention_heads"), positions, num_keys)
            to_self["position_bias"] = bias.expand(embeds.shape[0], -1, -1, -1)  # flex_attention looks up each sentence
        elif self.config.position_encoding == "rotary":
            to_self["rotation"] = self.embed_positions(start, L, position_ids)
        else:
            x = x + self.embed_positions(start, L, position_ids)  # (L, D) or (B, L, D)
        return self.dropout(x.to(dtype)), to_self

    def choose_backend(self, hidden_states: torch.Tensor, num_keys: int, kwargs: dict[str, Any]) -> VanillaConfig:
        """The config that this call's masks are made for; `kwargs` tell the layers of its attention backend."""
        backend, chosen = self.config._attn_implementation, kwargs.get("attn_implementation")
        if backend != "eager" and (kwargs.get("output_attentions") or kwargs.get("output_cross_attentions")):
            chosen = "eager"
            logger.warning_once(f"{backend} gives no attention weights: calls with output_attentions=True run on eager")
        elif chosen is None:
            chosen = backend_of_call(backend, hidden_states, num_keys)
        kwargs["attn_implementation"] = chosen
        if chosen == backend:
            return self.config
        config = copy.copy(self.config)
        config._attn_implementation = chosen
        return config


class VanillaEncoder(VanillaStack):
    """A stack of N encoder layers (section 3.1, "Encoder")."""

    layer = VanillaEncoderLayer
    _can_record_outputs = {"hidden_states": VanillaEncoderLayer, "attentions": VanillaAttention}  # noqa: RUF012

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None, position_ids: torch.Tensor | None = None, **kwargs: Any,
    ) -> BaseModelOutput:  # fmt: skip
        """
        The encoder's output, `last_hidden_state` `(B, S, D)`.

        Args:
            input_ids, inputs_embeds: `(B, S)`, or `(B, S, D)`, not yet scaled.
            attention_mask: `(B, S)`, 1 where there is a token and 0 where there is padding, on either side.
            position_ids: `(B, S)`; by default the mask's tokens are counted.
        """
        embeds = self.embed(input_ids, inputs_embeds)
        S = embeds.shape[1]
        if position_ids is None and attention_mask is not None and attention_mask.ndim == 2:
            position_ids = (count_tokens(attention_mask, 0, S) - 1).clamp(min=0)
        hidden_states, to_self = self.add_positions(embeds, 0, S, position_ids)  # (B, S, D)
        config = self.choose_backend(hidden_states, S, kwargs)
        to_self["attention_mask"] = mask_of_keys(config, hidden_states, attention_mask)
        to_self["has_keys"] = queries_with_keys(attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, to_self, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaDecoder(VanillaStack):
    """A stack of N decoder layers (section 3.1, "Decoder")."""

    layer = VanillaDecoderLayer
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": VanillaDecoderLayer,
        "attentions": OutputRecorder(VanillaAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaAttention, index=1, layer_name="encoder_attn"),
    }

    @merge_with_config_defaults
    @capture_outputs
    @accept_old_cache_name
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None, encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None, inputs_embeds: torch.Tensor | None = None, use_cache: bool | None = None,
        position_ids: torch.Tensor | None = None, **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:  # fmt: skip
        """
        The decoder's output, `last_hidden_state` `(B, T, D)`, and `cache`.

        Args:
            input_ids, inputs_embeds: `(B, T)`, or `(B, T, D)`, not yet scaled; with a cache, what isn't in it yet.
            attention_mask: `(B, T)`, cached positions included; needed only for padding on the left.
            encoder_hidden_states, encoder_attention_mask: `(B, S, D)`, and `(B, S)`, 1 where there is a token.
            cache: keys and values of earlier calls; made here when `use_cache` asks for one.
            position_ids: `(B, T)`; by default the mask's tokens are counted, or all.
        """
        embeds = self.embed(input_ids, inputs_embeds)
        T = embeds.shape[1]
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        self_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        if self.config.is_encoder_decoder and cache is self_cache and cache is not None:
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))  # cross attention needs its own
        start, num_keys = 0, T
        if self_cache is not None:
            start, num_keys = self_cache.get_seq_length(), self_cache.get_mask_sizes(T, 0)[0]
        if isinstance(start, torch.Tensor) and self.embed_positions is not None:
            self.embed_positions.reach(self_cache.get_max_length())
        has_keys = queries_with_keys(attention_mask)
        if attention_mask is not None and len(attention_mask.shape) == 2:  # flex_attention's masks have no ndim
            counts = count_tokens(attention_mask, start, T)  # (B, T)
            position_ids = (counts - 1).clamp(min=0) if position_ids is None else position_ids
            has_keys = None if all_true(counts > 0) else counts > 0
        hidden_states, to_self = self.add_positions(embeds, start, num_keys, position_ids)  # (B, T, D)
        config = self.choose_backend(hidden_states, num_keys, kwargs)
        if isinstance(start, int) and T == 1 and num_keys == start + 1 and masks_nothing(attention_mask, config):
            to_self["attention_mask"] = None  # a new token sees all before it
        else:
            to_self["attention_mask"] = create_causal_mask(config, hidden_states, attention_mask, self_cache)
        if isinstance(start, torch.Tensor) and not isinstance(to_self["attention_mask"], torch.Tensor | None):
            # flex_attention's mask looks the length up later, when the first layer has raised it: let it keep this one.
            self_cache.layers[0].cumulative_length = start.clone()
        to_self["has_keys"] = has_keys
        to_encoder = None
        if self.config.is_encoder_decoder:
            check_sources(embeds.shape[0], encoder_hidden_states, encoder_attention_mask)
            queries = hidden_states.reshape(encoder_hidden_states.shape[0], -1, embeds.shape[-1])  # type: ignore
            if "flash" in config._attn_implementation:  # the library would cut the queries to the source's lengths
                config = copy.copy(config)
                config._attn_implementation = "sdpa"
            mask = mask_of_keys(config, queries, encoder_attention_mask, encoder_hidden_states)
            to_encoder = {"attention_mask": mask, "has_keys": queries_with_keys(encoder_attention_mask)}
            to_encoder["attn_implementation"] = config._attn_implementation
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, to_self, encoder_hidden_states, to_encoder, cache=cache, use_cache=use_cache, **kwargs
            )
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.layer_norm(hidden_states), cache=cache)


class VanillaModel(VanillaPreTrainedModel):
    """Encoder and decoder, without the output projection (figure 1)."""

    def __init__(self, config: VanillaConfig):
        if not config.is_encoder_decoder:
            raise ValueError("is_encoder_decoder=False: an encoder or decoder alone; load it as what it was saved as")
        super().__init__(config)
        self.encoder = VanillaEncoder(config)
        self.decoder = VanillaDecoder(config)
        if config.tied_embeddings in ("all", "source_target"):
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self._tied_weights_keys and self.config.tie_word_embeddings:  # one matrix in two modules
            rows, columns = value.weight.shape
            self.decoder.embed_tokens = nn.Embedding(rows, columns, value.padding_idx, device="meta")
            self.decoder.embed_tokens.weight = value.weight  # `_weight=` would wrap it in another parameter

    @can_return_tuple
    @accept_old_cache_name
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None, decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None, cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None, decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None, decoder_position_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None, **kwargs: Any,
    ) -> Seq2SeqModelOutput:  # fmt: skip
        """
        `last_hidden_state` `(B, T, D)`, and the encoder's and decoder's other outputs.

        Args:
            input_ids, inputs_embeds, attention_mask, position_ids: the encoder's.
            encoder_outputs: what the encoder gave earlier, or a tuple of it; the source is then not read again.
            others: the decoder's.
        """
        kwargs["return_dict"] = True
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, position_ids, **kwargs)
        elif isinstance(encoder_outputs, tuple | list):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids, attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state, encoder_attention_mask=attention_mask,
            cache=cache, inputs_embeds=decoder_inputs_embeds, use_cache=use_cache, position_ids=decoder_position_ids,
            **kwargs,
        )  # fmt: skip
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state, cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states, decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states, encoder_attentions=encoder_outputs.attentions,
        )  # fmt: skip


@dataclass
class VanillaSeq2SeqLMOutput(Seq2SeqLMOutput):
    """The library's output, and `nll`: the plain negative log-likelihood beside the smoothed `loss`, detached."""

    nll: torch.Tensor | None = None


class VanillaForConditionalGeneration(VanillaPreTrainedModel, GenerationMixin):
    """Text in, text out: the model with its output projection, its loss and `generate()`."""

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.model = VanillaModel(config)
        V = config.decoder_vocab_size or config.vocab_size
        self.lm_head = nn.Linear(config.d_model, V, bias=config.output_bias)
        # Section 3.4: "we share the same weight matrix between the two embedding layers and the pre-softmax linear".
        source, target = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
        self._tied_weights_keys = {
            "all": {target: source, "lm_head.weight": source},
            "decoder": {"lm_head.weight": target},
            "source_target": {target: source},
            "none": None,
        }[config.tied_embeddings]
        self.post_init()

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """The library's; but PEFT, when it merges, says that nothing is tied where the source isn't to the output."""
        config, target = self.config, self.model.decoder.embed_tokens.weight
        ties = (target is self.model.encoder.embed_tokens.weight, target is self.lm_head.weight)
        if not config.tie_word_embeddings and any(ties):
            config.tied_embeddings = "all" if all(ties) else "source_target" if ties[0] else "decoder"
            config.tie_word_embeddings = True
        return super().save_pretrained(*args, **kwargs)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """What `DataCollatorForSeq2Seq` calls: labels `(B, T)`, with -100 as padding, to decoder inputs `(B, T)`."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def prepare_inputs_for_generation(
        self, *args: Any, decoder_attention_mask: Any = None, decoder_position_ids: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The library's; but positions are counted before it makes a static cache's mask, which can't be counted."""
        cache, first = kwargs.get("cache"), kwargs.get("is_first_iteration")
        if cache is not None and not first and kwargs.get("next_sequence_length", 1) is None:
            # An assistant drafts again: the library hands it the cached tokens too, unless they come with a mask.
            kwargs["next_sequence_length"] = args[0].shape[1] - cache.get_seq_length()
        if decoder_position_ids is None and decoder_attention_mask is not None and decoder_attention_mask.ndim == 2:
            decoder_position_ids = (decoder_attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        masks = {"decoder_attention_mask": decoder_attention_mask, "decoder_position_ids": decoder_position_ids}
        return super().prepare_inputs_for_generation(*args, **masks, **kwargs)

    def _expand_inputs_for_generation(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """The library's, which repeats all inputs for each beam; but beams share their sentence's encoding."""
        source = {name: kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        kwargs["encoder_outputs"] = {}  # it wants something to repeat
        input_ids, kwargs = super()._expand_inputs_for_generation(*args, **kwargs)
        return input_ids, {**kwargs, **source}

    def _reorder_cache(self, cache: Cache, beam_idx: torch.Tensor) -> Cache:
        """Beams change places within their sentence, so what is known of the source stays."""
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache

    @can_return_tuple
    @accept_old_cache_name
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None, decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None, cache: Cache | None = None, labels: torch.Tensor | None = None,
        use_cache: bool | None = None, inputs_embeds: torch.Tensor | None = None, **kwargs: Any,
    ) -> VanillaSeq2SeqLMOutput:  # fmt: skip
        """
        `loss` (smoothed) and `nll` (plain) with labels, in nats a token; `logits` `(B, T, V)`; and the model's outputs.

        Args:
            labels: `(B, T)`, -100 where there is nothing to predict. Decoder inputs are made from them if not given.
            label_smoothing: ε of section 5.4, 0 unless given.
            num_items_in_batch: target tokens of the whole update, where a batch comes in pieces.
            return_logits: by default none are kept when training with labels, for they need `V` numbers a token.
            others: as in `VanillaModel.forward`.
        """
        # By keyword only: Trainer takes every argument with "label" in its name for a column of the data.
        settings = {name: kwargs.pop(name) for name in LOSS_SETTINGS & kwargs.keys()}
        if labels is not None:
            use_cache = bool(use_cache)
            if decoder_input_ids is None and kwargs.get("decoder_inputs_embeds") is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        inputs = (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs, cache)
        kwargs |= {"inputs_embeds": inputs_embeds, "use_cache": use_cache, "return_dict": True}
        outputs = dict(self.model(*inputs, **kwargs))
        scored = project_and_score(self.lm_head, outputs.pop("last_hidden_state"), labels, self.training, **settings)
        return VanillaSeq2SeqLMOutput(**scored, **outputs)
