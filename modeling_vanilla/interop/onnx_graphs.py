"""
A translation model as three graphs, for an exporter to trace.

Shapes: `B` sentences, `K` beams, `S` source and `T` new target positions after `P` cached ones, `D` d_model, `H` heads,
`V` vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache

from modeling_vanilla.configuration_vanilla import VanillaConfig

POSITIONS = 1024  # tabulated at least: a graph's table of sinusoids can't grow


def names(prefix: str, config: VanillaConfig) -> list[str]:
    """What the graphs call the decoder layers' keys and values: prefix_key_0, prefix_value_0, prefix_key_1 ..."""
    return [f"{prefix}_{kind}_{i}" for i in range(config.decoder_layers) for kind in ("key", "value")]


def most_positions(config: VanillaConfig) -> float:
    """How long source and target may be for the graphs."""
    if config.position_encoding == "alibi":
        return float("inf")
    return max(config.max_position_embeddings, POSITIONS if config.position_encoding != "learned" else 0)


class Encoder(nn.Module):
    """The first graph: `input_ids` and `attention_mask` `(B, S)` to `last_hidden_state` `(B, S, D)`."""

    def __init__(self, model: Any):
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"last_hidden_state": self.encoder(input_ids, attention_mask).last_hidden_state}


class Memory(nn.Module):
    """The second: `last_hidden_state` to what each decoder layer's cross attention keeps of it, `(B, H, S, ...)`."""

    layers: Any

    def __init__(self, model: Any):
        super().__init__()
        self.names = names("source", model.config)
        self.layers = nn.ModuleList(layer.encoder_attn for layer in model.model.decoder.layers)

    def forward(self, last_hidden_state: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors = [
            layer.heads(projection(last_hidden_state), size)
            for layer in self.layers
            for projection, size in ((layer.k_proj, layer.d_k), (layer.v_proj, layer.d_v))
        ]
        return dict(zip(self.names, tensors, strict=True))


class Decoder(nn.Module):
    """
    The third, a step: `decoder_input_ids` `(B, K, T)`, the source's `attention_mask` `(B, S)`, what the second graph
    gave and `past_...` `(B, K, H, P, ...)` to `logits` `(B * K, V)` of the next token and `present_...`
    `(B * K, H, P + T, ...)`, the past and these tokens.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.decoder, self.lm_head = model.model.decoder, model.lm_head

    def forward(
        self, decoder_input_ids: torch.Tensor, attention_mask: torch.Tensor, **cached: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        config = self.decoder.config
        own = [cached[name].flatten(0, 1) for name in names("past", config)]
        cross = [cached[name] for name in names("source", config)]
        cache = EncoderDecoderCache(*(DynamicCache(list(zip(x[::2], x[1::2], strict=True))) for x in (own, cross)))
        B, _, S, _ = cross[0].shape
        source = cross[0].new_zeros(1, 1, 1).expand(B, S, config.d_model)  # its shape alone is asked for
        states = self.decoder(
            decoder_input_ids.flatten(0, 1),
            encoder_hidden_states=source,
            encoder_attention_mask=attention_mask,
            cache=cache,
            use_cache=True,
        )
        present = [x for layer in cache.self_attention_cache.layers for x in (layer.keys, layer.values)]
        logits = self.lm_head(states.last_hidden_state[:, -1])
        return {"logits": logits, **dict(zip(names("present", config), present, strict=True))}


def example_inputs(config: VanillaConfig) -> dict[str, tuple[dict[str, torch.Tensor], dict[str, dict]]]:
    """Of each graph, inputs to trace it with, and which of their dimensions may vary."""
    B, K, S, T, P = 2, 3, 5, 2, 4  # none is 1, which would be taken for granted
    vary = torch.export.Dim.AUTO
    heads = config.decoder_attention_heads
    sizes = [size or config.d_model // heads for size in (config.d_k, config.d_v)] * config.decoder_layers
    mask = torch.ones(B, S, dtype=torch.long)
    mask[1, 3:] = 0
    ids, target = torch.full((B, S), 3), torch.full((B, K, T), 3)
    source = {name: torch.randn(B, heads, S, size) for name, size in zip(names("source", config), sizes, strict=True)}
    past = {name: torch.randn(B, K, heads, P, size) for name, size in zip(names("past", config), sizes, strict=True)}
    text = {"input_ids": ids, "attention_mask": mask}
    step = {"decoder_input_ids": target, "attention_mask": mask, **source, **past}
    fixed = {"source": (1, 3), "past": (2, 4), "last": (2,)}  # heads and their sizes

    def shapes(inputs: dict[str, torch.Tensor]) -> dict[str, dict]:
        return {
            name: {axis: vary for axis in range(x.ndim) if axis not in fixed.get(name.split("_")[0], ())}
            for name, x in inputs.items()
        }

    states = {"last_hidden_state": torch.randn(B, S, config.d_model)}
    return {"encoder": (text, shapes(text)), "memory": (states, shapes(states)), "decoder": (step, shapes(step))}


def graphs(model: Any) -> dict[str, nn.Module]:
    """The three of a model, with tables of positions for the longest input."""
    for stack in (model.model.encoder, model.model.decoder):
        if stack.embed_positions is not None:
            stack.embed_positions.reach(int(most_positions(model.config)))
    parts = {"encoder": Encoder(model), "memory": Memory(model), "decoder": Decoder(model)}
    return {name: graph.eval() for name, graph in parts.items()}


__all__ = ["example_inputs", "graphs", "most_positions", "names"]
