"""What `translate()` searches by: what was given and the model's own settings, judged."""

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import torch
from transformers import GenerationConfig

from modeling_vanilla.decoding.lengths import length_divisor

# What `search` doesn't do, so that the library's own decoding functions take over.
LEFT_TO_GENERATE = {
    "assistant_model", "cache_implementation", "custom_generate", "decoder_attention_mask", "do_sample",
    "generation_config", "output_attentions", "output_hidden_states", "output_logits", "output_scores",
    "penalty_alpha", "prompt_lookup_num_tokens", "stop_strings", "streamer", "use_cache",
}  # fmt: skip


@dataclass
class Search:
    """What to search by; `prefixes` and `phrases` are token ids, of each piece of a text."""

    num_beams: int
    n_best: int
    length_penalty: float
    length_penalty_type: str
    max_len_a: float
    max_len_b: int
    generate_kwargs: dict[str, Any]
    prefixes: list[list[int]] = field(default_factory=list)
    phrases: list[list[list[int]]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        config: GenerationConfig,
        num_beams: int | None,
        n_best: int,
        length_penalty: float | None,
        length_penalty_type: str | None,
        max_len_a: float,
        max_len_b: int,
        generate_kwargs: dict[str, Any],
    ) -> "Search":
        """
        What was given to `translate()`, and the model's own `config` for what was not.

        Raises:
            ValueError: for what is no number or out of its range, and for `n_best` hypotheses of fewer beams.
        """
        num_beams = (config.num_beams or 1) if num_beams is None else num_beams
        length_penalty = config.length_penalty if length_penalty is None else length_penalty
        length_penalty = 1.0 if length_penalty is None else length_penalty
        for kind, what, given in (
            (Integral, "a whole number", {"num_beams": num_beams, "n_best": n_best}),
            (Real, "a number", {"length_penalty": length_penalty, "max_len_a": max_len_a, "max_len_b": max_len_b}),
        ):
            for name, value in given.items():
                if not isinstance(value, kind):
                    raise ValueError(f"{name}={value!r}: must be {what}")
        if num_beams < 1:
            raise ValueError(f"num_beams={num_beams}: must be at least 1 (greedy search)")
        form: str = length_penalty_type or getattr(config, "length_penalty_type", None) or "power"
        length_divisor(1, length_penalty, form)
        if "num_return_sequences" in generate_kwargs:
            raise ValueError("num_return_sequences is called n_best here")
        generate_kwargs = {
            name: value for name, value in generate_kwargs.items() if value is not None or name not in LEFT_TO_GENERATE
        }
        samples = num_beams == 1 and generate_kwargs.get("do_sample", config.do_sample)
        if n_best < 1 or (n_best > num_beams and not samples):
            raise ValueError(
                f"n_best={n_best}: must be from 1 to num_beams={num_beams} (any number with do_sample and num_beams=1)"
            )
        return cls(num_beams, n_best, length_penalty, form, max_len_a, max_len_b, generate_kwargs)

    def prescribed(self, index: int) -> int:
        """The tokens of a piece's prefix and phrases."""
        prefix = self.prefixes[index] if self.prefixes else []
        return len(prefix) + (sum(map(len, self.phrases[index])) if self.phrases else 0)

    def left_to_library(self, config: GenerationConfig) -> set[str]:
        """What is asked for, here or by the model's own `config`, that `search` doesn't do."""
        # Stop strings need the tokenizer, which the library keeps from a search of ours.
        of_model = ("do_sample", "cache_implementation", "stop_strings")
        settings = {name: getattr(config, name) for name in of_model} | self.generate_kwargs
        settings["use_cache"] = settings.get("use_cache") is False  # not to use it is what is asked for
        return {
            name
            for name in LEFT_TO_GENERATE & settings.keys()
            if isinstance(settings[name], torch.Tensor) or settings[name]
        }


__all__ = ["Search"]
