"""`Translator`: text in, text out."""

import copy
import importlib
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.data.batching import TokenBatchSampler
from modeling_vanilla.data.tokenizer import tokenizer_digest
from modeling_vanilla.decoding.alignment import Alignment, align
from modeling_vanilla.decoding.constraints import NEVER, Constraints
from modeling_vanilla.decoding.engines import OTHER_ENGINES, engine_of, load_model
from modeling_vanilla.decoding.glossary import Glossary, going_on, phrase_ids, word_mark
from modeling_vanilla.decoding.lengths import (
    MaxLengthPerSource,
    join_pieces,
    length_divisor,
    max_new_tokens,
    split_text,
)
from modeling_vanilla.decoding.packing import packed
from modeling_vanilla.decoding.scoring import Scored, check_budget, score, strings, token_log_probs, up_to_end
from modeling_vanilla.decoding.search import Member, search
from modeling_vanilla.decoding.settings import Search
from modeling_vanilla.errors import TextError


@dataclass(frozen=True)
class Translation:
    """
    One text's translation.

    Attributes:
        text: the best hypothesis.
        score: its log-probability (nats), divided by what `length_penalty` and its type make of its length in tokens,
            the end included. As in the library, one that is cut off at its most tokens ends for nothing.
        n_best: the best hypotheses and their scores, the first one included, the best first.
    """

    text: str
    score: float
    n_best: tuple[tuple[str, float], ...]


def as_line(text: str) -> str:
    """A translation on one line: a model may well write a line break."""
    return re.sub(r"[\r\n]+", " ", text)


NOTHING = Translation("", 0.0, (("", 0.0),))


class Translator:
    """
    Translates lists of strings with a trained model and its tokenizer.

    Settings that aren't given come from the model's `generation_config`, so that `translate()` and the model's own
    `generate()` agree.

    Example:
        >>> translator = Translator.from_pretrained("runs/en-de")  # doctest: +SKIP
        >>> translator.translate(["A man rides a bike."])[0].text  # doctest: +SKIP
        'Ein Mann fährt Fahrrad.'
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ensemble: Sequence[PreTrainedModel] = ()
    ):
        if hasattr(model, "get_base_model"):  # an adapter's layers stay in it
            model = model.get_base_model()
        for one in (model, *ensemble):
            if not isinstance(one.config, VanillaConfig):
                name, kind = one.name_or_path or type(one).__name__, one.config.model_type
                raise ValueError(f"{name}: a {kind} model, not one of ours: use transformers' generate() or pipeline()")
        self.model = model.eval()
        self.tokenizer = tokenizer
        rows = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > rows:
            raise ValueError(
                f"the tokenizer has {len(tokenizer):,} tokens, and the model {rows:,}: they don't belong together"
            )
        self.ensemble = [other.eval() for other in ensemble]  # searched by the mean of all models' probabilities
        for other in self.ensemble:
            if other.lm_head.out_features != model.lm_head.out_features:
                raise ValueError(
                    f"an ensemble needs one vocabulary: the models predict {model.lm_head.out_features:,} and "
                    f"{other.lm_head.out_features:,} tokens"
                )
            if other.get_input_embeddings().num_embeddings < len(tokenizer):
                raise ValueError("an ensemble needs one vocabulary: one of the models doesn't read all source tokens")
        self.generation_config = model.generation_config

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        engine: Literal["vanilla", "ctranslate2", "onnx"] | None = None,
        ensemble: Sequence[str | Path] = (),
        **kwargs: Any,
    ) -> "Translator":
        """
        Loads a folder that `vanilla train` wrote, an adapter that PEFT did, or a repository on the Hub.

        Args:
            name_or_path: the folder, or the repository's id; for another engine, what `vanilla convert` wrote.
            engine: what runs the model; None is the one that the folder was written for. "ctranslate2" and "onnx" are
                extras.
            ensemble: other models of the same tokenizer, whose probabilities are averaged with this one's.
            device: None takes a GPU where there is one.
            dtype: of the weights; "auto" is the one that they were saved in.
            kwargs: for `AutoModelForSeq2SeqLM.from_pretrained` (`revision`, `token` ...).

        Raises:
            ValueError: when there is no such folder, or no model in it; for an unknown dtype or device; for an
                ensemble of different tokenizers.
        """
        engine = engine or engine_of(name_or_path)
        if engine in OTHER_ENGINES:
            if ensemble:
                raise ValueError(f"engine={engine!r} knows no ensembles: use our own engine")
            if kwargs:
                raise ValueError(f"engine={engine!r} knows no {', '.join(kwargs)}")
            module = importlib.import_module(f"modeling_vanilla.interop.{engine}")
            return module.open_translator(name_or_path, device, str(dtype).removeprefix("torch."))
        if engine != "vanilla":
            raise ValueError(f"engine={engine!r} is unknown: must be one of vanilla, {', '.join(OTHER_ENGINES)}")
        if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ValueError(f"dtype={dtype!r} is unknown: float32, bfloat16, float16 or auto")
        model, tokenizer = load_model(name_or_path, dtype, **kwargs)
        if dtype != "auto" and model.dtype != (getattr(torch, dtype) if isinstance(dtype, str) else dtype):
            raise ValueError(f"dtype={dtype}: {name_or_path} has int8 weights and computes in {model.dtype} alone")
        others = []
        for name in ensemble:
            other, its_tokenizer = load_model(name, dtype, **kwargs)
            if tokenizer_digest(its_tokenizer) != tokenizer_digest(tokenizer):
                raise ValueError(f"{name}: has another tokenizer than {name_or_path}, so the two can't be an ensemble")
            others.append(other)
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            return cls(model.to(device), tokenizer, [other.to(device) for other in others])
        except (AssertionError, RuntimeError) as error:
            raise ValueError(f"device={str(device)!r}: can't be used: {str(error).splitlines()[0]}") from error

    def translate(
        self,
        texts: Sequence[str],
        *,
        num_beams: int | None = None,
        n_best: int = 1,
        length_penalty: float | None = None,
        length_penalty_type: Literal["power", "paper"] | None = None,
        max_len_a: float = 1.0,
        max_len_b: int = 50,
        prefixes: Sequence[str] | None = None,
        glossary: Glossary | None = None,
        max_tokens: int = 8192,
        on_too_long: Literal["split", "refuse"] = "split",
        progress: bool | None = None,
        **generate_kwargs: Any,
    ) -> list[Translation]:
        """
        Translates texts, in order. A text without anything but white space is translated to "".

        Args:
            texts: one translation unit each, as a rule a sentence.
            num_beams: 1 is greedy search. Default: the model's.
            n_best: hypotheses to return; at most `num_beams`, or any number with `do_sample`.
            length_penalty: exponent of the length in the score; larger favours longer. Default: the model's.
            length_penalty_type: what the score is divided by for n tokens: "power" is n^α (fairseq's), "paper" is
                ((5 + n) / 6)^α. Default: the model's, else "power".
            max_len_a, max_len_b: a translation has at most a · (tokens of the source) + b tokens; the paper's limit.
            prefixes: what each translation begins with, as many as texts; "" leaves it free.
            glossary: terms whose prescribed translations the translations must contain.
            max_tokens: padded source positions times beams (or samples) that a batch holds at most.
            on_too_long: what to do with a text of more tokens than the tokenizer's `model_max_length`, which is what
                the model was trained on: "split" it after sentences (else words) and join the translations, or
                "refuse" it.
            progress: show a progress bar; None does for more than 1,000 texts.
            generate_kwargs: for the model's `generate()`: `early_stopping="never"` searches until nothing better can
                come, for instance.

        Raises:
            ValueError: for a text too long when told to refuse it, naming its number, length and the limit; for a
                prefix or terms that learned positions have no room for; for `n_best` above `num_beams`; for a single
                string in the place of a list.
        """
        texts = strings("texts", texts)
        if on_too_long not in ("split", "refuse"):
            raise ValueError(f"on_too_long={on_too_long!r}: must be 'split' or 'refuse'")
        check_budget(max_tokens)
        how = Search.of(
            self.generation_config, num_beams, n_best, length_penalty, length_penalty_type, max_len_a, max_len_b,
            generate_kwargs,
        )  # fmt: skip
        prefixes = None if prefixes is None else strings("prefixes", prefixes)
        if prefixes is not None and len(prefixes) != len(texts):
            raise ValueError(f"{len(prefixes)} prefixes for {len(texts)} texts: there must be as many")
        pieces = [self._pieces(number, text, on_too_long) for number, text in enumerate(texts, start=1)]
        flat = [piece for row in pieces for piece in row]
        sources = self.tokenizer(flat, verbose=False).input_ids if flat else []
        if prefixes is not None:
            of_pieces = [(prefix, *[""] * len(row))[: len(row)] for prefix, row in zip(prefixes, pieces, strict=True)]
            how.prefixes = [self._prefix_ids(prefix) for row in of_pieces for prefix in row]
        if glossary is not None:
            if how.num_beams == 1:
                raise ValueError("a glossary needs num_beams of at least 2: one can't weigh where a term goes")
            how.phrases = [
                [phrase_ids(text, self.tokenizer, self._word_mark) for text in glossary.translations(piece)]
                for piece in flat
            ]
        if self._must_search(how):
            if not self._can_search(how):
                asked = ", ".join(sorted(how.left_to_library(self.model.generation_config)))
                raise ValueError(
                    "an ensemble, prefixes, a glossary and the paper's length penalty are not to be had with "
                    f"{asked}, given or the model's own: turn it off"
                )
            self._check_room(how, [number for number, row in enumerate(pieces, start=1) for _ in row])
        if progress is None:
            progress = len(texts) > 1000
        hypotheses = self._translate_ids(sources, how, max_tokens, progress)
        results, position = [], 0
        for row in pieces:
            results.append(_join(hypotheses[position : position + len(row)]))
            position += len(row)
        return results

    def score(self, sources: Sequence[str], targets: Sequence[str], *, max_tokens: int = 8192) -> list[Scored]:
        """
        The log-probabilities (nats) of given translations, in order; their sum is minus the model's summed NLL.

        Args:
            sources, targets: as many of each.
            max_tokens: padded positions a side that a batch holds at most.

        Raises:
            ValueError: when the two differ in number; for a pair that learned positions have no room for.
        """
        return score(self.model, self.tokenizer, sources, targets, max_tokens)

    def align(
        self, sources: Sequence[str], targets: Sequence[str], *, layer: int | None = None, max_tokens: int = 8192
    ) -> list[Alignment]:
        """
        For each pair, (source word, target word) of every target word, counted from 0; `alignment.align` says how.

        Raises:
            ValueError: when the two differ in number, or there is no such decoder layer.
        """
        return align(self.model, self.tokenizer, sources, targets, layer, max_tokens)

    def _pieces(self, number: int, text: str, on_too_long: str) -> list[str]:
        if not text.strip():
            return []
        limit = self.tokenizer.model_max_length
        if self._length(text) <= limit:
            return [text]
        if on_too_long == "refuse":
            raise TextError(
                number,
                f"has {self._length(text)} tokens, but the model was trained on at most {limit}: "
                'shorten it, or use on_too_long="split"',
            )
        return split_text(text, lambda piece: self._length(piece) <= limit)

    def _length(self, text: str) -> int:
        return len(self.tokenizer(text, verbose=False).input_ids)

    def _room(self) -> int:
        """The most tokens of a translation, its end included, that there are learned positions for."""
        configs = [model.config for model in (self.model, *self.ensemble)]
        rows = [config.max_position_embeddings for config in configs if config.position_encoding == "learned"]
        return min(rows, default=sys.maxsize) - 1

    def _check_room(self, how: Search, numbers: list[int]) -> None:
        """Refuses what is prescribed for more tokens than fit, of the texts of these numbers."""
        most = self._room() - 1  # without the end
        for index, number in enumerate(numbers):
            if (count := how.prescribed(index)) > most:
                raise TextError(
                    number,
                    f"has a prefix and terms of {count} tokens for its translation, but the model has learned "
                    f"positions for {most}: shorten them",
                )

    def _prefix_ids(self, prefix: str) -> list[int]:
        prefix = prefix.rstrip()  # the next word brings its own space
        return self.tokenizer(text_target=prefix, add_special_tokens=False, verbose=False).input_ids if prefix else []

    @cached_property
    def _going_on(self) -> set[int]:
        """The tokens that go on with the word before them."""
        return going_on(self.tokenizer, self._word_mark)

    @cached_property
    def _word_mark(self) -> str:
        return word_mark(self.tokenizer)

    def _must_search(self, how: Search) -> bool:
        """Whether something is asked for that only our own search does."""
        mine = any(how.prefixes) or any(how.phrases) or self.ensemble
        return bool(mine) or (how.length_penalty_type == "paper" and how.num_beams > 1)

    def _can_search(self, how: Search) -> bool:
        return not how.left_to_library(self.model.generation_config)

    def _translate_ids(
        self, sources: list[list[int]], how: Search, max_tokens: int, progress: bool
    ) -> list[Translation]:
        if not sources:
            return []
        lengths = [len(ids) for ids in sources]
        rows = max(how.num_beams, how.n_best)  # of a sentence: its beams, or its samples
        sampler = TokenBatchSampler(lengths, lengths, max(1, max_tokens // rows), shuffle=False, longer_alone=True)
        results: list[Translation] = [NOTHING] * len(sources)
        bar = tqdm(total=len(sources), unit=" sentences", disable=not progress, leave=False)
        with ExitStack() as stack:
            stack.enter_context(bar)
            stack.enter_context(torch.inference_mode())
            for model in (self.model, *self.ensemble):
                stack.enter_context(packed(model, len(sources) * rows))
            for indices in sampler:
                batch = self.tokenizer.pad({"input_ids": [sources[i] for i in indices]}, return_tensors="pt")
                batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
                ids, scores = self._generate(batch, how, indices)
                hypotheses = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
                for row, index in enumerate(indices):
                    own = slice(row * how.n_best, (row + 1) * how.n_best)
                    pairs = zip(hypotheses[own], scores[own], strict=True)
                    found = [pair for pair in pairs if pair[1] > NEVER / 2]  # fewer where there are no more
                    found.sort(key=lambda pair: -pair[1])  # samples come as they were drawn
                    text, score = found[0] if found else ("", 0.0)
                    results[index] = Translation(text, score, tuple(found) or NOTHING.n_best)
                bar.update(len(indices))
        return results

    def _generate(
        self, batch: dict[str, torch.Tensor], how: Search, indices: list[int]
    ) -> tuple[torch.Tensor, list[float]]:
        """Token ids `(B * n_best, T)` without the start token, and scores."""
        num_beams, n_best, length_penalty, kind = how.num_beams, how.n_best, how.length_penalty, how.length_penalty_type
        source_lengths = batch["attention_mask"].sum(1).tolist()
        phrases = [how.phrases[i] for i in indices] if how.phrases else []
        limits = [  # what is prescribed has room beside the rest
            min(max_new_tokens(length, how.max_len_a, how.max_len_b) + how.prescribed(i), self._room())
            for length, i in zip(source_lengths, indices, strict=True)
        ]
        settings: dict[str, Any] = {
            "num_beams": num_beams,
            "num_return_sequences": n_best,
            "length_penalty": length_penalty if num_beams > 1 else None,
            "max_length": max(limits) + 1,  # the start token counts there
            "return_dict_in_generate": True,
            **how.generate_kwargs,
        }
        device = self.model.device
        if self._can_search(how):
            config = copy.copy(self.model.generation_config)
            config.length_penalty_type = kind if num_beams > 1 else "power"
            settings = config.update(**settings)  # what isn't the config's; it warns of both side by side
            config.use_cache = True
            prefixes = pad_sequence(
                [torch.tensor(how.prefixes[i], dtype=torch.long) for i in indices], True, -100
            ).to(device) if how.prefixes else None  # fmt: skip
            ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
            output = self.model.generate(
                **batch, **settings, generation_config=config, custom_generate=search,
                limits=torch.tensor(limits, device=device), prefixes=prefixes,
                ensemble=[
                    Member(other, other.get_encoder()(**batch).last_hidden_state, batch["attention_mask"])
                    for other in self.ensemble
                ],
                constraints=Constraints(phrases, num_beams, ends, self._going_on) if any(phrases) else None,
            )  # fmt: skip
            ids, scores = output.sequences[:, 1:], output.sequences_scores
            if num_beams == 1:  # generate() takes no length penalty then
                lengths = (up_to_end(ids, self.tokenizer, ends) != -100).sum(1)
                scores = scores * lengths / length_divisor(lengths, length_penalty, kind)
            return ids, scores.tolist()

        settings["logits_processor"] = [
            MaxLengthPerSource(limits, max(num_beams, n_best), self.tokenizer.eos_token_id, device),
            *how.generate_kwargs.get("logits_processor", []),
        ]
        encoder_outputs = self.model.get_encoder()(**batch)
        config = self.model.generation_config
        ends = settings.get("eos_token_id", config.eos_token_id)
        if settings.get("stop_strings", config.stop_strings):
            settings.setdefault("tokenizer", self.tokenizer)
        output = self.model.generate(
            batch["input_ids"],  # which some logits processors look at
            encoder_outputs=BaseModelOutput(last_hidden_state=encoder_outputs.last_hidden_state),
            attention_mask=batch["attention_mask"],
            **settings,
        )
        ids = output.sequences[:, 1:]
        if "sequences_scores" in output:
            return ids, output.sequences_scores.tolist()
        labels = up_to_end(ids, self.tokenizer, ends if isinstance(ends, list) else [ends])
        decoded = self.model.model(
            attention_mask=batch["attention_mask"],
            encoder_outputs=(encoder_outputs.last_hidden_state,),
            decoder_input_ids=output.sequences[:, :-1],
            use_cache=False,
        )
        log_probs = token_log_probs(decoded.last_hidden_state, self.model.lm_head, labels).sum(1)
        return ids, (log_probs / length_divisor((labels != -100).sum(1), length_penalty, kind)).tolist()


def _join(pieces: list[Translation]) -> Translation:
    """The translation of a text that was cut into pieces; its score is the mean of theirs."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return NOTHING
    ranks = zip(*(piece.n_best for piece in pieces), strict=False)  # as many as every piece has
    n_best = tuple(
        (join_pieces([text for text, _ in rank]), sum(score for _, score in rank) / len(rank)) for rank in ranks
    )
    return Translation(*n_best[0], n_best)


__all__ = ["Translation", "Translator", "as_line"]
