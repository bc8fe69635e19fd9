"""`Translator`: text in, text out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from modeling_vanilla.data.batching import TokenBatchSampler
from modeling_vanilla.decoding.lengths import MaxLengthPerSource, join_pieces, max_new_tokens, split_text
from modeling_vanilla.decoding.packing import packed
from modeling_vanilla.decoding.scoring import token_log_probs
from modeling_vanilla.decoding.search import search


@dataclass(frozen=True)
class Translation:
    """
    One text's translation.

    Attributes:
        text: the best hypothesis.
        score: its log-probability (nats) over its length in tokens (the end included) to the power `length_penalty`.
        n_best: the best hypotheses and their scores, the first one included, the best first.
    """

    text: str
    score: float
    n_best: tuple[tuple[str, float], ...]


def as_line(text: str) -> str:
    """A translation on one line: a model may well write a line break."""
    return re.sub(r"[\r\n]+", " ", text)


# What `search` doesn't do, so that the library's own decoding functions take over.
LEFT_TO_GENERATE = {
    "assistant_model", "cache_implementation", "custom_generate", "decoder_attention_mask", "do_sample",
    "generation_config", "output_attentions", "output_hidden_states", "output_logits", "output_scores",
    "penalty_alpha", "prompt_lookup_num_tokens", "streamer", "use_cache",
}  # fmt: skip
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

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.generation_config = model.generation_config

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        engine: Literal["vanilla", "ctranslate2"] = "vanilla",
        **kwargs: Any,
    ) -> "Translator":
        """
        Loads a folder that `vanilla train` wrote, or a repository on the Hub.

        Args:
            name_or_path: the folder, or the repository's id; for another engine, what `vanilla convert` wrote.
            engine: what runs the model; "ctranslate2" is an extra.
            device: None takes a GPU where there is one.
            dtype: of the weights; "auto" is the one that they were saved in.
            kwargs: for `AutoModelForSeq2SeqLM.from_pretrained` (`revision`, `token` ...).

        Raises:
            ValueError: when there is no such folder, or no model in it; for an unknown dtype or device.
        """
        if engine == "ctranslate2":
            from modeling_vanilla.interop.ctranslate2 import open_translator

            return open_translator(name_or_path, device, str(dtype).removeprefix("torch."))
        if engine != "vanilla":
            raise ValueError(f"engine={engine!r} is unknown: vanilla or ctranslate2")
        if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ValueError(f"dtype={dtype!r} is unknown: float32, bfloat16, float16 or auto")
        path = Path(name_or_path)
        if path.is_dir() and not (path / "config.json").is_file():
            raise ValueError(
                f"{path}: no model there (config.json is missing); give a folder that `vanilla train` wrote"
            )
        try:
            model = AutoModelForSeq2SeqLM.from_pretrained(name_or_path, dtype=dtype, **kwargs)
            tokenizer = AutoTokenizer.from_pretrained(name_or_path, **kwargs)
        except OSError as error:
            raise ValueError(f"{name_or_path}: can't load a model from there: {str(error).splitlines()[0]}") from error
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            return cls(model.to(device), tokenizer)
        except (AssertionError, RuntimeError) as error:
            raise ValueError(f"device={str(device)!r}: can't be used: {str(error).splitlines()[0]}") from error

    def translate(
        self,
        texts: Sequence[str],
        *,
        num_beams: int | None = None,
        n_best: int = 1,
        length_penalty: float | None = None,
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
            max_tokens: padded source positions times beams that a batch holds at most.
            on_too_long: what to do with a text of more tokens than the tokenizer's `model_max_length`, which is what
                the model was trained on: "split" it after sentences (else words) and join the translations, or
                "refuse" it.
            progress: show a progress bar; None does for more than 1,000 texts.
            generate_kwargs: for the model's `generate()`.

        Raises:
            ValueError: for a text too long when told to refuse it, naming its number, length and the limit; for
                `n_best` above `num_beams`; for a single string in the place of a list.
        """
        if isinstance(texts, str):
            raise ValueError("translate() takes a list of strings, not one string: put it in brackets")
        if on_too_long not in ("split", "refuse"):
            raise ValueError(f"on_too_long={on_too_long!r}: must be 'split' or 'refuse'")
        if max_tokens < 1:
            raise ValueError(f"max_tokens={max_tokens}: a batch must hold at least 1 token")
        config = self.generation_config
        num_beams = (config.num_beams or 1) if num_beams is None else num_beams
        if num_beams < 1:
            raise ValueError(f"num_beams={num_beams}: must be at least 1 (greedy search)")
        length_penalty = config.length_penalty if length_penalty is None else length_penalty
        length_penalty = 1.0 if length_penalty is None else length_penalty
        if "num_return_sequences" in generate_kwargs:
            raise ValueError("num_return_sequences is called n_best here")
        if n_best < 1 or (n_best > num_beams and not generate_kwargs.get("do_sample")):
            raise ValueError(f"n_best={n_best}: must be from 1 to num_beams={num_beams} (or any number with do_sample)")
        pieces = [self._pieces(number, text, on_too_long) for number, text in enumerate(texts, start=1)]
        flat = [piece for row in pieces for piece in row]
        sources = self.tokenizer(flat, verbose=False).input_ids if flat else []
        hypotheses = self._translate_ids(
            sources, num_beams, n_best, length_penalty, max_tokens, len(texts) > 1000 if progress is None else progress,
            generate_kwargs,
        )  # fmt: skip
        results, position = [], 0
        for row in pieces:
            results.append(_join(hypotheses[position : position + len(row)]))
            position += len(row)
        return results

    def _pieces(self, number: int, text: str, on_too_long: str) -> list[str]:
        if not text.strip():
            return []
        limit = self.tokenizer.model_max_length
        if self._length(text) <= limit:
            return [text]
        if on_too_long == "refuse":
            raise ValueError(
                f"text {number} has {self._length(text)} tokens, but the model was trained on at most {limit}: "
                'shorten it, or use on_too_long="split"'
            )
        return split_text(text, lambda piece: self._length(piece) <= limit)

    def _length(self, text: str) -> int:
        return len(self.tokenizer(text, verbose=False).input_ids)

    def _translate_ids(
        self,
        sources: list[list[int]],
        num_beams: int,
        n_best: int,
        length_penalty: float,
        max_tokens: int,
        progress: bool,
        generate_kwargs: dict[str, Any],
    ) -> list[Translation]:
        if not sources:
            return []
        lengths = [len(ids) for ids in sources]
        budget = max(max_tokens // num_beams, max(lengths))
        sampler = TokenBatchSampler(lengths, lengths, budget, shuffle=False)
        results: list[Translation] = [NOTHING] * len(sources)
        bar = tqdm(total=len(sources), unit=" sentences", disable=not progress, leave=False)
        with bar, torch.inference_mode(), packed(self.model, len(sources) * num_beams):
            for indices in sampler:
                batch = self.tokenizer.pad({"input_ids": [sources[i] for i in indices]}, return_tensors="pt")
                batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
                ids, scores = self._generate(batch, num_beams, n_best, length_penalty, generate_kwargs)
                hypotheses = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
                for row, index in enumerate(indices):
                    own = slice(row * n_best, (row + 1) * n_best)
                    n_best_list = tuple(zip(hypotheses[own], scores[own], strict=True))
                    results[index] = Translation(*n_best_list[0], n_best_list)
                bar.update(len(indices))
        return results

    def _generate(
        self,
        batch: dict[str, torch.Tensor],
        num_beams: int,
        n_best: int,
        length_penalty: float,
        generate_kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, list[float]]:
        """Token ids `(B * n_best, T)` without the start token, and scores."""
        source_lengths = batch["attention_mask"].sum(1).tolist()
        limits = [max_new_tokens(length) for length in source_lengths]
        settings: dict[str, Any] = {
            "num_beams": num_beams,
            "num_return_sequences": n_best,
            "length_penalty": length_penalty if num_beams > 1 else None,
            "max_length": max(limits) + 1,  # the start token counts there
            "return_dict_in_generate": True,
            **generate_kwargs,
        }
        of_model = self.model.generation_config
        if not (LEFT_TO_GENERATE & generate_kwargs.keys() or of_model.do_sample or of_model.cache_implementation):
            output = self.model.generate(
                **batch, **settings, custom_generate=search, limits=torch.tensor(limits, device=self.model.device)
            )
            ids, scores = output.sequences[:, 1:], output.sequences_scores
            if num_beams == 1:  # generate() takes no length penalty then
                scores = scores * (self._labels(ids) != -100).sum(1) ** (1 - length_penalty)
            return ids, scores.tolist()

        settings["logits_processor"] = [
            MaxLengthPerSource(source_lengths, max(num_beams, n_best), self.tokenizer.eos_token_id, self.model.device),
            *generate_kwargs.get("logits_processor", []),
        ]
        encoder_outputs = self.model.get_encoder()(**batch)
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoder_outputs.last_hidden_state),
            attention_mask=batch["attention_mask"],
            **settings,
        )
        ids = output.sequences[:, 1:]
        if "sequences_scores" in output:
            return ids, output.sequences_scores.tolist()
        labels = self._labels(ids)
        decoded = self.model.model(
            attention_mask=batch["attention_mask"],
            encoder_outputs=(encoder_outputs.last_hidden_state,),
            decoder_input_ids=output.sequences[:, :-1],
            use_cache=False,
        )
        head = self.model.lm_head
        log_probs = token_log_probs(decoded.last_hidden_state, head.weight, labels, head.bias).sum(1)
        return ids, (log_probs / (labels != -100).sum(1) ** length_penalty).tolist()

    def _labels(self, ids: torch.Tensor) -> torch.Tensor:
        """The ids with everything after the first end token turned to -100: padding."""
        ended = (ids == self.tokenizer.eos_token_id).cumsum(1) - (ids == self.tokenizer.eos_token_id).long()
        return ids.masked_fill(ended > 0, -100)


def _join(pieces: list[Translation]) -> Translation:
    """The translation of a text that was cut into pieces; its score is the mean of theirs."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return NOTHING
    ranks = zip(*(piece.n_best for piece in pieces), strict=True)
    n_best = tuple(
        (join_pieces([text for text, _ in rank]), sum(score for _, score in rank) / len(rank)) for rank in ranks
    )
    return Translation(*n_best[0], n_best)


__all__ = ["Translation", "Translator", "as_line"]
