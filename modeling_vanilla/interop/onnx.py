"""
ONNX (an extra): our models as graphs, by the library's exporter, and `generate()` and `Translator` on ONNX Runtime.

Shapes: `B` sentences, `K` beams, `S` source and `T` new target positions, `D` d_model, `H` heads, `V` vocabulary.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions, Seq2SeqLMOutput

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.decoding.engines import OTHER_ENGINES
from modeling_vanilla.decoding.search import take_over
from modeling_vanilla.decoding.settings import Search
from modeling_vanilla.decoding.translator import Translator
from modeling_vanilla.errors import first_line
from modeling_vanilla.interop.common import check_fast, new_folder, reach, read_model
from modeling_vanilla.interop.onnx_graphs import example_inputs, graphs, most_positions, names
from modeling_vanilla.modeling_vanilla import VanillaForConditionalGeneration


def library() -> Any:
    """The exporter's package; a `ValueError` that says how to install what it needs where that is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("ONNX is not installed: pip install 'vanilla-transformer[onnx]'") from error
    from transformers import exporters

    return exporters


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporters have to tell of themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@torch.no_grad()
def export(model: Any) -> Any:
    """The graphs of a model in evaluation mode, as the library's `ExportedModel`."""
    exporters = library()
    components = {}
    with quiet():
        examples = example_inputs(model.config)
        for name, graph in graphs(model).items():
            inputs, shapes = examples[name]
            exported = exporters.OnnxExporter().export(graph, inputs, exporters.OnnxConfig(dynamic_shapes=shapes))
            components[name] = exported.components["model"]
            for node in components[name].program.graph.all_nodes():
                node.metadata_props.clear()  # names this machine's files, line by line
    return exporters.ExportedModel(components, "onnx", config=model.config, generation_config=model.generation_config)


def convert(name_or_path: str | Path, folder: str | Path) -> None:
    """
    Writes a trained model as ONNX graphs in float32 (`onnx_graphs` says what they take and give), its tokenizer and
    settings beside them.

    Args:
        name_or_path: a folder that `vanilla train` wrote, or a repository on the Hub.
        folder: where to write; must not exist, or be empty.

    Raises:
        ValueError: without the extra `onnx`; for a folder that holds something; where there is no model of ours, or a
            tokenizer without a fast version.
    """
    library()
    with new_folder(folder) as folder:
        model, tokenizer = read_model(name_or_path)
        check_fast(name_or_path, tokenizer)
        reach(model.config, tokenizer)
        exported = export(model)
        with quiet():
            exported.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


class GivenLayer(DynamicLayer):
    """A cache layer of keys and values that a graph gave."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values


class OnnxEncoder(nn.Module):
    """The encoder as `generate()` knows it, on ONNX Runtime."""

    def __init__(self, exported: Any):
        super().__init__()
        self.graph, self.most = exported.runners["encoder"], most_positions(exported.config)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """`last_hidden_state` `(B, S, D)` of `(B, S)`."""
        refuse(kwargs, input_ids.shape[1], self.most)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        return BaseModelOutput(**run(self.graph, input_ids=input_ids, attention_mask=mask))


class OnnxDecoder(nn.Module):
    """The decoder as `generate()` and our search know it, on ONNX Runtime, up to the last position's logits."""

    def __init__(self, exported: Any):
        super().__init__()
        self.config, self.most = exported.config, most_positions(exported.config)
        self.memory, self.step = exported.runners["memory"], exported.runners["decoder"]
        self.layers = range(self.config.decoder_layers)

    def forward(
        self, input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None, cache: Any = None, **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:  # fmt: skip
        """`(B * K, 1, V)` of what follows `(B * K, T)`, as `last_hidden_state`; the sources are `(B, S, D)`."""
        c, (B, S, _) = self.config, encoder_hidden_states.shape
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if cache is None else cache
        own, cross = cache.self_attention_cache, cache.cross_attention_cache
        start, ids = own.get_seq_length(), input_ids.view(B, -1, input_ids.shape[1])  # (B, K, T)
        refuse(kwargs, start + ids.shape[2], self.most)
        if not cross.get_seq_length():
            keep(cross, [*run(self.memory, last_hidden_state=encoder_hidden_states).values()])
        if start:
            past = [x.unflatten(0, ids.shape[:2]) for layer in own.layers for x in (layer.keys, layer.values)]
        else:
            H = c.decoder_attention_heads
            sizes = [size or c.d_model // H for size in (c.d_k, c.d_v)] * c.decoder_layers
            past = [encoder_hidden_states.new_empty(*ids.shape[:2], H, 0, size) for size in sizes]
        source = [x for layer in cross.layers for x in (layer.keys, layer.values)]
        mask = encoder_attention_mask
        mask = ids.new_ones(B, S) if mask is None else mask.long()
        cached = dict(zip((*names("past", c), *names("source", c)), (*past, *source), strict=True))
        logits, *present = run(self.step, decoder_input_ids=ids, attention_mask=mask, **cached).values()
        keep(own, present)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=logits[:, None], cache=cache)


def keep(cache: DynamicCache, tensors: Sequence[torch.Tensor]) -> None:
    """Has the cache hold these: keys and values in turn, layer by layer."""
    cache.layers = [GivenLayer(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]


def run(graph: Any, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """A graph's outputs; a `ValueError` where ONNX Runtime fails."""
    try:
        return graph(**inputs)
    except Exception as error:  # it has a class for each of its faults, and none for all
        raise ValueError(f"ONNX Runtime: {first_line(error)}") from error


def refuse(arguments: dict[str, Any], num_positions: int, most: float) -> None:
    """A `ValueError` for what the graphs can't do: lengths beyond their tables, and whatever else is asked for."""
    if num_positions > most:
        raise ValueError(f"{num_positions} positions are more than this ONNX model's {most}: shorten the text")
    for name, value in arguments.items():
        if name not in ("use_cache", "return_dict") and value is not None and value is not False:
            raise ValueError(f"an ONNX model knows no {name}: use engine='vanilla'")


class OnnxModel(VanillaForConditionalGeneration):
    """
    A model that `generate()` and `Translator` use as any other, computed by ONNX Runtime.

    Args:
        exported: the library's `ExportedModel` of what `export` made, opened on a device.
    """

    device: Any
    dtype: Any
    generation_config: Any

    def __init__(self, exported: Any):
        if not isinstance(exported.config, VanillaConfig):
            raise ValueError("no config.json of a model of ours there")
        cached = {name for prefix in ("past", "source") for name in names(prefix, exported.config)}
        if cached | {"decoder_input_ids", "attention_mask"} != exported.components["decoder"].metadata.kwargs.keys():
            raise ValueError("its config.json and its graphs don't belong together")
        super(VanillaForConditionalGeneration, self).__init__(exported.config)  # none of the layers
        self.generation_config = exported.generation_config or self.generation_config
        self.onnx_encoder, self.onnx_decoder = OnnxEncoder(exported), OnnxDecoder(exported)
        self.lm_head = nn.Identity()  # type: ignore[assignment]  # the graph ends in logits
        self.runs_on = exported.device

    device = property(lambda self: self.runs_on)
    dtype = property(lambda self: torch.float32)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.onnx_encoder

    def get_decoder(self) -> nn.Module:
        return self.onnx_decoder

    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None, encoder_outputs: Any = None, cache: Any = None, **kwargs: Any,
    ) -> Seq2SeqLMOutput:  # fmt: skip
        """`logits` `(B * K, 1, V)` of what follows `decoder_input_ids` `(B * K, T)`, and `cache`."""
        if encoder_outputs is None:
            encoder_outputs = self.onnx_encoder(input_ids, attention_mask)
        source = encoder_outputs[0]
        outputs = self.onnx_decoder(decoder_input_ids, source, attention_mask, cache, **kwargs)
        return Seq2SeqLMOutput(logits=outputs.last_hidden_state, cache=outputs.cache)


take_over(OnnxModel)


def open_model(folder: str | Path, device: Any = None) -> OnnxModel:
    """
    What `convert` wrote, as a model with `generate()`.

    Args:
        device: cpu or cuda; None takes a GPU where this ONNX Runtime has one.

    Raises:
        ValueError: without the extra `onnx`; where there is no such model in the folder; for a device that ONNX Runtime
            doesn't have here.
    """
    exporters = library()
    import onnxruntime

    if not (Path(folder) / OTHER_ENGINES["onnx"]).is_file():
        raise ValueError(f"{folder}: no ONNX model there: `vanilla convert MODEL FOLDER --to onnx` writes one")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what goes wrong is raised
    try:
        with quiet():
            return OnnxModel(exporters.ExportedModel.from_pretrained(folder, device=device, session_options=options))
    except Exception as error:  # whatever a spoiled file makes the libraries raise
        raise ValueError(f"{folder}: ONNX Runtime can't open it: {first_line(error)}") from error


def open_translator(folder: str | Path, device: Any = None, dtype: str = "auto") -> "OnnxTranslator":
    """
    A `Translator` on ONNX Runtime; arguments and errors are those of `open_model`, and a `ValueError` for any `dtype`
    but float32.
    """
    if dtype not in ("auto", "float32"):
        raise ValueError(f"dtype={dtype!r}: an ONNX model computes in float32")
    model = open_model(folder, device)
    try:
        return OnnxTranslator(model, PreTrainedTokenizerFast.from_pretrained(folder))
    except Exception as error:
        raise ValueError(f"{folder}: can't load the tokenizer: {first_line(error)}") from error


class OnnxTranslator(Translator):
    """`Translator` whose model ONNX Runtime computes; its searches are ours."""

    def __init__(self, model: OnnxModel, tokenizer: PreTrainedTokenizerFast):
        if len(tokenizer) > model.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer):,} tokens, and the model {model.config.vocab_size:,}: "
                "they don't belong together"
            )
        self.model, self.tokenizer, self.ensemble = model, tokenizer, []
        self.generation_config = model.generation_config

    def score(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError("an ONNX model neither scores nor aligns given translations: use engine='vanilla'")

    align = score

    def _can_search(self, how: Search) -> bool:
        if not super()._can_search(how):
            raise ValueError("an ONNX model is searched greedily or with beams, no other way: use engine='vanilla'")
        return True


__all__ = ["OnnxModel", "OnnxTranslator", "convert", "export", "open_model", "open_translator"]
