# Copyright 2026 The vanilla-transformer authors. Licensed under the Apache License, Version 2.0.
"""The same encoder and decoder in other uses: text encoding, classification of text and images, a language model.

Shapes: `B` examples, `S` source and `T` target positions, `D` d_model, `V` vocabulary, `L` labels.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
    CausalLMOutputWithCrossAttentions,
    ImageClassifierOutput,
    SequenceClassifierOutput,
)
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_vanilla import VanillaConfig
from .loss import LOSS_SETTINGS, project_and_score
from .modeling_vanilla import VanillaDecoder, VanillaEncoder, VanillaPreTrainedModel, accept_old_cache_name


class VanillaEncoderModel(VanillaPreTrainedModel):
    """The encoder alone: text in, one vector a token out. It loads the encoder of a translation model too."""

    part, stack = "encoder", VanillaEncoder

    def __init__(self, config: VanillaConfig):
        config = copy.deepcopy(config)
        config.is_encoder_decoder = False
        if self.part == "decoder":
            config.vocab_size = config.decoder_vocab_size or config.vocab_size
            config.encoder_layers = config.decoder_layers  # caches have as many, by the name of num_hidden_layers
        super().__init__(config)
        setattr(self, self.part, self.stack(config))
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return getattr(self, self.part).embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        getattr(self, self.part).embed_tokens = value

    @can_return_tuple
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None, **kwargs: Any,
    ) -> ModelOutput:  # fmt: skip
        """As `VanillaEncoder.forward` (or the decoder's)."""
        return getattr(self, self.part)(input_ids, attention_mask, inputs_embeds=inputs_embeds, **kwargs)


class VanillaDecoderModel(VanillaEncoderModel):
    """The decoder alone, without attention over a source."""

    part, stack = "decoder", VanillaDecoder


class VanillaClassifier(VanillaPreTrainedModel):
    """What the two classifiers share: the mean of the encoder's output, a linear map, and the loss."""

    def __init__(self, config: VanillaConfig):
        model = VanillaEncoderModel(config)
        super().__init__(model.config)
        self.num_labels = config.num_labels
        self.model = model
        self.classifier = nn.Linear(config.d_model, config.num_labels)

    def classify(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None, labels: torch.Tensor | None, num_items: Any
    ) -> dict[str, torch.Tensor | None]:
        """`loss` and `logits` `(B, L)` of the mean over the tokens of `hidden_states` `(B, S, D)`."""
        if mask is None:
            mean = hidden_states.mean(1)  # (B, D)
        else:
            mask = mask[:, :, None].to(hidden_states.dtype)  # (B, S, 1)
            mean = (hidden_states * mask).sum(1) / mask.sum(1).clamp(min=1)  # (B, D)
        logits, loss = self.classifier(mean), None  # (B, L)
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits.float(), config=self.config)
            if num_items is not None:  # a mean over these; where a batch comes in pieces, a share of the whole's
                loss = loss * (labels != -100).sum() / num_items
        return {"loss": loss, "logits": logits}


class VanillaForSequenceClassification(VanillaClassifier):
    """
    Labels for a text: one of several, several at once or numbers, as `config.problem_type` says, or else the labels
    given (`num_labels=1` is regression; whole numbers name one label; others say which of several hold).
    """

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None, inputs_embeds: torch.Tensor | None = None, **kwargs: Any,
    ) -> SequenceClassifierOutput:  # fmt: skip
        """`logits` `(B, L)`, and `loss` with labels `(B)`, or `(B, L)` for several or numbers."""
        num_items = kwargs.pop("num_items_in_batch", None)
        outputs = dict(self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs))
        result = self.classify(outputs.pop("last_hidden_state"), attention_mask, labels, num_items)
        return SequenceClassifierOutput(**result, **outputs)


class VanillaForImageClassification(VanillaClassifier):
    """
    A label for an image: cut into patches, each a linear projection of its pixels, which are the encoder's tokens from
    left to right and from top to bottom (Dosovitskiy et al. 2021). The encoder is the text's, not a line changed.
    """

    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _input_embed_layer = "patch_projection"

    def __init__(self, config: VanillaConfig):
        super().__init__(config)
        self.model.encoder.embed_tokens = None  # there are no words
        self.patch_projection = nn.Linear(config.num_channels * config.patch_size**2, config.d_model)
        if config.scale_embedding:  # the encoder multiplies by sqrt(D)
            setattr(self.patch_projection, "init_gain", config.d_model**-0.5)  # noqa: B010
        self.post_init()

    @can_return_tuple
    def forward(
        self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutput:
        """As above, of `pixel_values` `(B, num_channels, image_size, image_size)`; a `ValueError` for other shapes."""
        config, num_items = self.config, kwargs.pop("num_items_in_batch", None)
        P, expected = config.patch_size, (config.num_channels, config.image_size, config.image_size)
        if tuple(pixel_values.shape[1:]) != expected:
            raise ValueError(
                f"images of shape {tuple(pixel_values.shape[1:])} for a model of {expected} (channels, height, width): "
                "resize them, or change num_channels and image_size of the config"
            )
        patches = pixel_values.unfold(2, P, P).unfold(3, P, P)  # (B, C, rows, columns, P, P)
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # (B, rows · columns, C · P · P)
        embeds = self.patch_projection(patches.to(self.patch_projection.weight.dtype))  # (B, S, D)
        outputs = dict(self.model(inputs_embeds=embeds, return_dict=True, **kwargs))
        result = self.classify(outputs.pop("last_hidden_state"), None, labels, num_items)
        return ImageClassifierOutput(**result, **outputs)


@dataclass
class VanillaCausalLMOutput(CausalLMOutputWithCrossAttentions):
    """The library's output, and `nll`: the plain negative log-likelihood beside the smoothed `loss`, detached."""

    nll: torch.Tensor | None = None


class VanillaForCausalLM(VanillaPreTrainedModel, GenerationMixin):
    """The decoder alone as a language model, with `generate()`."""

    def __init__(self, config: VanillaConfig):
        model = VanillaDecoderModel(config)
        super().__init__(model.config)
        self.model = model
        self.lm_head = nn.Linear(config.d_model, self.config.vocab_size, bias=config.output_bias)
        if config.tied_embeddings in ("all", "decoder"):
            self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        self.post_init()

    @can_return_tuple
    @accept_old_cache_name
    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None, cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None, labels: torch.Tensor | None = None, use_cache: bool | None = None,
        **kwargs: Any,
    ) -> VanillaCausalLMOutput:  # fmt: skip
        """
        `loss` (smoothed) and `nll` (plain) with labels, in nats a token; `logits` `(B, T, V)`; `cache`.

        Args:
            labels: `(B, T)`, the input's own tokens, -100 where there is nothing to predict: each from those before it.
            others: as in `VanillaDecoder.forward`, and the loss's as in `VanillaForConditionalGeneration.forward`.
        """
        settings = {name: kwargs.pop(name) for name in LOSS_SETTINGS & kwargs.keys()}
        shifted = kwargs.pop("shift_labels", None)  # given where a sequence is cut into pieces
        if labels is not None:  # position t predicts token t + 1
            labels = nn.functional.pad(labels[:, 1:], (0, 1), value=-100) if shifted is None else shifted
            use_cache = bool(use_cache)
        inputs = {"position_ids": position_ids, "cache": cache, "inputs_embeds": inputs_embeds, "use_cache": use_cache}
        outputs = dict(self.model(input_ids, attention_mask, **inputs, return_dict=True, **kwargs))
        scored = project_and_score(self.lm_head, outputs.pop("last_hidden_state"), labels, self.training, **settings)
        return VanillaCausalLMOutput(**scored, **outputs)
