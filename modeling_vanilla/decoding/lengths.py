"""How long a translation may get, relative to its source; how a source that is too long is cut."""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

SENTENCE_ENDS = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？；])\s*")
LENGTH_PENALTIES = ("power", "paper")
# How a beam search may end, as one writes it and as `generate()` takes it.
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}
WORD_ENDS = re.compile(r"\s+|(?<=[，、：])")


def max_new_tokens(source_length: int, a: float = 1.0, b: int = 50) -> int:
    """The most tokens of a translation: a · source + b, as a rule the paper's 50 more (section 6.1); at least 1."""
    if not (math.isfinite(a) and a >= 0 and b >= 0):
        raise ValueError(f"max_len_a={a}, max_len_b={b}: must be finite numbers of at least 0")
    return max(1, int(a * source_length + b))


def length_divisor(length: Any, alpha: float, kind: str = "power") -> Any:
    """
    What a hypothesis's log-probability is divided by, for its length in tokens (the end included).

    Args:
        kind: "power" is n^α (fairseq's, the library's); "paper" is ((5 + n) / 6)^α (Wu et al. 2016, section 7, which
            the paper takes with α = 0.6).
    """
    if kind not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty_type={kind!r}: must be one of {', '.join(LENGTH_PENALTIES)}")
    if not math.isfinite(alpha):
        raise ValueError(f"length_penalty={alpha}: must be a finite number")
    return (length if kind == "power" else (5 + length) / 6) ** alpha


class MaxLengthPerSource(LogitsProcessor):
    """
    Ends each translation at its own source's limit, so that it does not depend on the sentences it is batched with.

    Args:
        limits: the most new tokens of each source's translation, `(B)`.
        rows_per_source: rows that `generate()` makes of each: its beams, or its samples.
        eos_token_id: the token that is forced once the limit is reached.
    """

    def __init__(self, limits: Sequence[int], rows_per_source: int, eos_token_id: int, device: torch.device):
        self.limits = torch.tensor(limits, device=device).repeat_interleave(rows_per_source)  # (B * rows_per_source)
        self.first = min(limits)
        self.eos_token_id = eos_token_id

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        new_tokens = input_ids.shape[1]  # the start token counts for the one being chosen
        if new_tokens < self.first:
            return scores
        over = new_tokens >= self.limits
        scores = scores.masked_fill(over[:, None], -torch.inf)
        scores[over, self.eos_token_id] = 0
        return scores


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """
    Cuts a text into pieces that fit: after sentences where it can, else between words, else between characters.

    Nothing is lost but white space between pieces.
    """
    for boundary in (SENTENCE_ENDS, WORD_ENDS):
        pieces = _pack(_cut(text, boundary), fits)
        if all(map(fits, pieces)):
            return pieces
        if len(pieces) > 1:
            return [part for piece in pieces for part in ([piece] if fits(piece) else split_text(piece, fits))]
    if len(text) == 1:
        raise ValueError(f"even one character, {text!r}, does not fit: raise the limit on tokens")
    middle = len(text) // 2
    return [
        part for half in (text[:middle], text[middle:]) for part in ([half] if fits(half) else split_text(half, fits))
    ]


def _cut(text: str, boundary: re.Pattern[str]) -> list[str]:
    """The text's parts, each with the white space that follows it."""
    ends = [match.end() for match in boundary.finditer(text)]
    starts = [0, *ends]
    return [part for start, end in zip(starts, [*ends, len(text)], strict=True) if (part := text[start:end])]


def _pack(parts: list[str], fits: Callable[[str], bool]) -> list[str]:
    """As few pieces as neighbouring parts make while they fit."""
    pieces: list[str] = []
    for part in parts:
        if pieces and fits((pieces[-1] + part).strip()):
            pieces[-1] += part
        else:
            pieces.append(part)
    return [piece.strip() for piece in pieces if piece.strip()]


def join_pieces(pieces: Sequence[str]) -> str:
    """Joins translated pieces with a space, or without one where the script has none (Chinese, Japanese)."""
    text = ""
    for piece in filter(None, pieces):
        space = "" if not text or unicodedata.east_asian_width(text[-1]) in "WF" else " "
        text += space + piece
    return text


__all__ = [
    "EARLY_STOPPING",
    "LENGTH_PENALTIES",
    "MaxLengthPerSource",
    "join_pieces",
    "length_divisor",
    "max_new_tokens",
    "split_text",
]
