"""CTranslate2 (an extra): our models in its format, and `Translator` on its engine."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerFast

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.decoding.lengths import max_new_tokens
from modeling_vanilla.decoding.settings import Search
from modeling_vanilla.decoding.translator import NOTHING, Translation, Translator
from modeling_vanilla.errors import first_line
from modeling_vanilla.interop.common import check_fast, new_folder, reach, read_model

logger = logging.getLogger(__name__)

BLOCK = 4096  # sentences handed to the engine at once
SINUSOIDS = 2048  # positions of a model whose own table would grow
POSITIONS = "positions"  # how many there are, beside the engine's own settings
QUANTIZATIONS = ("float32", "int8")
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_new": "GELUTanh",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
}
# Of a model's generation config: what our engine heeds and this one can't, each with the value that changes nothing.
LEFT_OUT = {
    "do_sample": False, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1.0,
    "renormalize_logits": False, "begin_suppress_tokens": None, "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None, "sequence_bias": None, "stop_strings": None, "watermarking_config": None,
}  # fmt: skip
OF_SAMPLES = ("temperature", "top_k", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


def library() -> Any:
    """The `ctranslate2` package; a `ValueError` that says how to install it where it is missing."""
    try:
        import ctranslate2
        import ctranslate2.converters
        import ctranslate2.specs
    except ImportError as error:
        raise ValueError("CTranslate2 is not installed: pip install 'vanilla-transformer[ctranslate2]'") from error
    return ctranslate2


def check_config(config: VanillaConfig) -> None:
    """Raises `ValueError` for what CTranslate2's encoder-decoder can't compute, naming it."""
    D, encoder_heads, decoder_heads = config.d_model, config.encoder_attention_heads, config.decoder_attention_heads
    reasons = {
        f"position_encoding={config.position_encoding!r} (sinusoidal or learned can be)": config.position_encoding
        not in ("sinusoidal", "learned"),
        f"activation_function={config.activation_function!r}": config.activation_function not in ACTIVATIONS,
        "different numbers of heads in encoder and decoder": encoder_heads != decoder_heads,
        "d_k or d_v other than d_model / heads": any(
            size not in (None, D // encoder_heads) for size in (config.d_k, config.d_v)
        ),
        "separate vocabularies of source and target": config.decoder_vocab_size not in (None, config.vocab_size),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise ValueError(f"this model can't be converted to ctranslate2: {reason}")


def convert(name_or_path: str | Path, folder: str | Path, quantization: Literal["float32", "int8"] = "float32") -> None:
    """
    Writes a trained model in CTranslate2's format, its tokenizer and generation settings beside it.

    Args:
        name_or_path: a folder that `vanilla train` wrote, or a repository on the Hub.
        folder: where to write; must not exist, or be empty.
        quantization: of the weights. Products with int8 weights round their inputs to int8 as well.

    Raises:
        ValueError: without the extra `ctranslate2`; for a folder that holds something; for a model that CTranslate2
            can't compute (rotary or ALiBi positions, separate vocabularies, other head sizes), naming the reason; for a
            tokenizer without a fast version.
    """
    ct2 = library()
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization={quantization!r}: must be one of {', '.join(QUANTIZATIONS)}")
    with new_folder(folder) as folder:
        model, tokenizer = read_model(name_or_path)
        check_config(model.config)
        check_fast(name_or_path, tokenizer)
        reach(model.config, tokenizer)
        spec = build_spec(ct2, model, tokenizer)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(folder))
        tokenizer.save_pretrained(folder)
        own = model.generation_config
        for name, value, known in (
            ("early_stopping", "never", "true or false"),
            ("length_penalty_type", "paper", "power"),
        ):
            if getattr(own, name, None) == value:
                logger.warning("%s: its %s is %s, which CTranslate2 doesn't know: give %s", folder, name, value, known)
        for name, neutral in {**LEFT_OUT, "eos_token_id": tokenizer.eos_token_id}.items():
            if (found := getattr(own, name, None)) not in (None, neutral):
                logger.warning("%s: its %s=%s is left out, for CTranslate2 doesn't know it", folder, name, found)
                setattr(own, name, None)
        for name in OF_SAMPLES:
            setattr(own, name, None)
        own.save_pretrained(folder)


def open_translator(folder: str | Path, device: Any = None, dtype: str = "auto") -> "CTranslate2Translator":
    """
    A `Translator` on CTranslate2's engine.

    Args:
        folder: what `convert` wrote.
        device: cpu, cuda, cuda:1 ...; None takes a GPU where the engine finds one.
        dtype: of the computation: float32, int8, bfloat16 ...; "auto" is the one that was saved.

    Raises:
        ValueError: without the extra `ctranslate2`; when there is no converted model in the folder; for a device or
            dtype that the engine doesn't have here.
    """
    ct2 = library()
    if not (Path(folder) / "model.bin").is_file():
        raise ValueError(f"{folder}: no CTranslate2 model there: `vanilla convert MODEL --to ctranslate2` writes one")
    threads = torch.get_num_threads()
    kind, _, index = str(device or "auto").partition(":")
    try:
        engine = ct2.Translator(
            str(folder),
            device=kind,
            device_index=int(index or 0),
            compute_type="default" if dtype == "auto" else dtype,
            inter_threads=threads,  # a core a batch, which beats all cores on one
            intra_threads=1,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{folder}: CTranslate2 can't open it: {first_line(error)}") from error
    torch.set_num_threads(threads)  # the engine sets them for the whole process
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        positions = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")).get(POSITIONS)
    except Exception as error:  # whatever a spoiled file makes the libraries raise
        raise ValueError(f"{folder}: can't load the tokenizer and settings: {first_line(error)}") from error
    return CTranslate2Translator(engine, tokenizer, config, positions)


class CTranslate2Translator(Translator):
    """
    `Translator` whose searches CTranslate2 runs; it sorts and batches by itself.

    Its beam search is the library's with `early_stopping=True`: it ends with as many hypotheses as beams. Without, it
    waits for twice as many here, which comes close to the library's other rule. Where tokens are ruled out (by
    `suppress_tokens`, `no_repeat_ngram_size` ...), it scores by the probabilities among those that are left.
    """

    def __init__(
        self, engine: Any, tokenizer: PreTrainedTokenizerFast, generation_config: GenerationConfig,
        positions: int | None = None,
    ):  # fmt: skip
        self.engine, self.tokenizer, self.generation_config = engine, tokenizer, generation_config
        self.positions = positions  # of a translation, its end included
        self.workers = max(engine.num_translators, 1)

    def score(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError("ctranslate2 neither scores nor aligns given translations: use engine='vanilla'")

    align = score

    def _room(self) -> int:
        return (self.positions or sys.maxsize) - 1

    def _must_search(self, how: Search) -> bool:
        if any(how.prefixes) or how.phrases or (how.length_penalty_type != "power" and how.num_beams > 1):
            raise ValueError(
                "ctranslate2 knows no prefixes, glossary or length_penalty_type paper: use engine='vanilla'"
            )
        if how.generate_kwargs.get("early_stopping", self.generation_config.early_stopping) == "never":
            raise ValueError(
                "ctranslate2 can't search until nothing better can come (early_stopping never, given or the model's "
                "own): give another, or use engine='vanilla'"
            )
        return False

    def _translate_ids(
        self, sources: list[list[int]], how: Search, max_tokens: int, progress: bool
    ) -> list[Translation]:
        given = dict(how.generate_kwargs)

        def setting(name: str, neutral: Any) -> Any:
            value = given.pop(name, getattr(self.generation_config, name, None))
            return neutral if value is None else value

        early_stopping = setting("early_stopping", False)
        least = max(setting("min_new_tokens", 0), setting("min_length", 0) - 1)  # the start token counts there
        never = [*([token] for token in setting("suppress_tokens", [])), *setting("bad_words_ids", [])]
        settings = {
            "repetition_penalty": setting("repetition_penalty", 1.0),
            "no_repeat_ngram_size": setting("no_repeat_ngram_size", 0),
            "suppress_sequences": [self.tokenizer.convert_ids_to_tokens(ids) for ids in never] or None,
        }
        for name in given.keys() & LEFT_OUT.keys():
            if given[name] in (None, LEFT_OUT[name]):
                del given[name]  # changes nothing
        if given:
            raise ValueError(f"ctranslate2 doesn't know {', '.join(given)}: use engine='vanilla'")
        limits = [  # without the end
            min(max_new_tokens(len(ids), how.max_len_a, how.max_len_b), self._room()) - 1 for ids in sources
        ]
        results: list[Translation] = [NOTHING] * len(sources)

        def run(indices: Sequence[int], limit: int) -> None:
            if limit < 1:  # the end token alone, which the engine takes for a mistake
                return
            found = self.engine.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(sources[i]) for i in indices],
                beam_size=how.num_beams,
                patience=1 if early_stopping is True else 2,
                num_hypotheses=how.n_best,
                length_penalty=how.length_penalty,
                min_decoding_length=min(least, limit),
                max_decoding_length=limit,
                max_input_length=0,  # or the rest of a long source is left out without a word
                max_batch_size=max(max_tokens // how.num_beams // self.workers, *(len(sources[i]) for i in indices)),
                batch_type="tokens",
                return_scores=True,
                **settings,
            )
            for index, result in zip(indices, found, strict=True):
                if limits[index] < limit and max(map(len, result.hypotheses)) >= limits[index]:
                    run([index], limits[index])  # the engine has one limit for all in a call
                    continue
                n_best = []
                for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                    if len(tokens) == limit:  # cut off, and divided by its length without the end
                        score *= (limit / (limit + 1)) ** how.length_penalty
                    n_best.append((self._text(tokens), score))
                n_best.sort(key=lambda pair: -pair[1])
                results[index] = Translation(*n_best[0], tuple(n_best))

        by_length = sorted(range(len(sources)), key=limits.__getitem__)
        with tqdm(total=len(sources), unit=" sentences", disable=not progress, leave=False) as bar:
            for start in range(0, len(sources), BLOCK):
                indices = by_length[start : start + BLOCK]
                try:
                    run(indices, max(limits[i] for i in indices))
                except RuntimeError as error:
                    raise ValueError(f"CTranslate2: {error}: shorten the texts, or use engine='vanilla'") from error
                bar.update(len(indices))
        return results

    def _text(self, tokens: Sequence[str]) -> str:
        return self.tokenizer.decode(self.tokenizer.convert_tokens_to_ids(list(tokens)), skip_special_tokens=True)


__all__ = ["CTranslate2Translator", "convert", "open_translator"]


def build_spec(ct2: Any, model: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    """CTranslate2's description of the model, with its weights."""
    c, utils = model.config, ct2.converters.utils
    spec = ct2.specs.TransformerSpec.from_config(
        (c.encoder_layers, c.decoder_layers),
        c.encoder_attention_heads,
        pre_norm=c.norm_position == "pre",
        activation=getattr(ct2.specs.Activation, ACTIVATIONS[c.activation_function]),
    )

    def linear(target: Any, *layers: Any) -> None:
        parts = []
        for layer in layers:
            part = ct2.specs.common_spec.LinearSpec()
            part.weight = layer.weight.detach().numpy()
            if layer.bias is not None:
                part.bias = layer.bias.detach().numpy()
            parts.append(part)
        utils.fuse_linear(target, parts)

    def norm(target: Any, layer: Any) -> None:
        target.gamma, target.beta = layer.weight.detach().numpy(), layer.bias.detach().numpy()

    for side, stack in ((spec.encoder, model.model.encoder), (spec.decoder, model.model.decoder)):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = stack.embed_tokens.weight.detach().numpy()
        side.scale_embeddings = stack.embed_scale
        positions = stack.embed_positions
        if c.position_encoding == "learned":
            table = positions.weight[c.position_offset :]
        else:  # it can't grow there
            table = positions.rows(max(c.max_position_embeddings, SINUSOIDS))
        side.position_encodings.encodings = table.detach().numpy()
        if c.norm_position == "pre":
            norm(side.layer_norm, stack.layer_norm)
        for target, layer in zip(side.layer, stack.layers, strict=True):
            own = layer.self_attn
            linear(target.self_attention.linear[0], own.q_proj, own.k_proj, own.v_proj)
            linear(target.self_attention.linear[1], own.out_proj)
            norm(target.self_attention.layer_norm, layer.self_attn_layer_norm)
            if side is spec.decoder:
                cross = layer.encoder_attn
                linear(target.attention.linear[0], cross.q_proj)
                linear(target.attention.linear[1], cross.k_proj, cross.v_proj)
                linear(target.attention.linear[2], cross.out_proj)
                norm(target.attention.layer_norm, layer.encoder_attn_layer_norm)
            linear(target.ffn.linear_0, layer.fc1)
            linear(target.ffn.linear_1, layer.fc2)
            norm(target.ffn.layer_norm, layer.final_layer_norm)
        spec.config.add_attribute(POSITIONS, len(table))  # of the decoder, which is the last
    linear(spec.decoder.projection, model.lm_head)

    tokens = tokenizer.convert_ids_to_tokens(list(range(min(c.vocab_size, len(tokenizer)))))
    tokens += [f"<unused {i}>" for i in range(len(tokens), c.vocab_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token = tokenizer.bos_token, tokenizer.eos_token
    spec.config.unk_token = tokenizer.unk_token or tokens[0]
    spec.config.decoder_start_token = tokens[c.decoder_start_token_id]
    spec.config.layer_norm_epsilon = c.layer_norm_eps
    return spec
