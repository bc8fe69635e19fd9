"""BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267): words cut anew each time, some of their merges left out."""

import json
import random
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

VARIANTS = 64  # ways that one word is cut in a run, at most; frequent words are then cut once, not a million times
CACHED_WORDS, CACHED_TEXTS = 2**20, 2**17


class BPEDropout:
    """
    Cuts tokenised texts anew, each merge of BPE left out with probability `p` (algorithm 1 of that paper).

    A word's cut is drawn from (seed, word, one of 64 variants): equal seeds give equal ids on any machine and in any
    worker. (The tokenizers library's own dropout can't be seeded, and gives the last merges of a word more than one
    chance.) A text that can't be cut word by word, such as one with an unknown token, keeps its ids.

    Args:
        tokenizer: a fast tokenizer whose model is BPE.
        p: from 0 to 1; 0.1 in that paper, on both sides, while training.
        seed: of the draws.

    Raises:
        ValueError: for another kind of tokenizer, or p out of range.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, p: float, seed: int = 0):
        if not 0 <= p <= 1:
            raise ValueError(f"bpe_dropout={p}: must be a probability, from 0 to 1 (0.1 in its paper)")
        backend = getattr(tokenizer, "backend_tokenizer", None)
        model: dict[str, Any] = {"type": "none"} if backend is None else json.loads(backend.to_str())["model"]
        unsupported = [key for key in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(key)]
        if model["type"] != "BPE" or unsupported:
            kind = " with ".join((model["type"], *unsupported))
            raise ValueError(f"bpe_dropout={p}: needs a BPE tokenizer, as `vanilla tokenizer` trains; this is {kind}")
        self.tokenizer, self.p, self.seed = tokenizer, p, seed
        self.backend: Any = backend
        self.vocabulary: dict[str, int] = model["vocab"]
        merges = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        whole, bare = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
        start = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        self.before, self.after = whole[:start], whole[start + len(bare) :]
        self._cut = lru_cache(CACHED_WORDS)(self._cut_word)
        self._words = lru_cache(CACHED_TEXTS)(self._words_of)

    def __reduce__(self) -> Any:
        return BPEDropout, (self.tokenizer, self.p, self.seed)  # without its caches, which can't be sent to a worker

    def __call__(self, row: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """
        New ids (int32) of a row of ids, as the tokenizer gave them, special tokens included.

        Args:
            draw: says which variant of each word.
        """
        words = self._words(row.astype(np.int32).tobytes())
        if not words:
            return row
        variants = draw.integers(VARIANTS, size=len(words)).tolist()
        return np.fromiter(chain(self.before, *map(self._cut, words, variants), self.after), np.int32)

    def _words_of(self, row: bytes) -> list[str]:
        """What the pre-tokenizer makes of the row's text; nothing where its words don't give back the row's ids."""
        ids = np.frombuffer(row, np.int32).tolist()
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        normalizer, pre_tokenizer = self.backend.normalizer, self.backend.pre_tokenizer
        text = normalizer.normalize_str(text) if normalizer else text
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer else [text]
        plain = [*self.before, *(i for word in words for i in self._cut(word, None)), *self.after]
        return words if plain == ids else []

    def _cut_word(self, word: str, variant: int | None) -> tuple[int, ...]:
        """Each time, the best merge among those that were not left out in this turn; None: nothing is left out."""
        parts, ranks, p = list(word), self.ranks, 0.0 if variant is None else self.p
        chance = random.Random(f"{self.seed} {variant} {word}").random
        while len(parts) > 1:
            best, position = len(ranks), -1
            for index in range(len(parts) - 1):
                rank = ranks.get((parts[index], parts[index + 1]), best)
                if rank < best and (p == 0 or chance() >= p):
                    best, position = rank, index
            if position < 0:
                break
            parts[position : position + 2] = [parts[position] + parts[position + 1]]
        return tuple(index for part in parts for index in self._ids(part))

    def _ids(self, part: str) -> list[int]:
        """A token, or else its bytes, where the vocabulary has them."""
        if part in self.vocabulary:
            return [self.vocabulary[part]]
        return [self.vocabulary.get(f"<0x{byte:02X}>", -1) for byte in part.encode()]


__all__ = ["BPEDropout"]
