"""How long a translation may get, relative to its source; how a source that is too long is cut."""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

SENTENCE_ENDS = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？；])\s*")
LENGTH_PENALTIES = ("power", "paper")
# How a beam search may end, as one writes it and as `generate()` takes it.
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}
WORD_ENDS = re.compile(r"\s+|(?<=[，、：])")
# Chinese and Japanese with their punctuation have no spaces; Thai, Lao, Burmese and Khmer have them between sentences.
CHINESE_JAPANESE = (
    "\u2e80-\u312f\u3190-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe10-\ufe1f\ufe30-\ufe6f\uff01-\uff9f\uffe0-\uffe6"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
NO_SPACES_BETWEEN_WORDS = re.compile(
    f"[{CHINESE_JAPANESE}\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff]"
)
NO_SPACE_AFTER = re.compile(f"[{CHINESE_JAPANESE}][\U0001f000-\U0001faff]*$")  # whatever emoji are at its end


def max_new_tokens(source_length: int, a: float = 1.0, b: int = 50) -> int:
    """The most tokens of a translation: a · source + b, as a rule the paper's 50 more (section 6.1); at least 1."""
    if not (math.isfinite(a) and a >= 0 and b >= 0):
        raise ValueError(f"max_len_a={a}, max_len_b={b}: must be finite numbers of at least 0")
    if not (length := a * source_length + b) < 2**31:
        raise ValueError(f"max_len_a={a}, max_len_b={b}: allow {length:.1g} tokens: lower them")
    return max(1, int(length))


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
    """As few pieces as neighbouring parts make while they fit; each end is searched for, since `fits` takes long."""

    def too_long(start: int, end: int) -> bool:
        return not fits("".join(parts[start:end]).strip())

    pieces: list[str] = []
    start = 0
    while start < len(parts):
        end, beyond = start + 1, start + 2
        while beyond <= len(parts) and not too_long(start, beyond):
            end, beyond = beyond, 2 * beyond - start
        between = range(end + 1, min(beyond, len(parts) + 1))
        end += bisect_left(between, True, key=lambda end: too_long(start, end))
        pieces.append("".join(parts[start:end]))
        start = end
    return [piece.strip() for piece in pieces if piece.strip()]


def join_pieces(pieces: Sequence[str]) -> str:
    """Joins translated pieces with a space, or without one where the script has none (Chinese, Japanese)."""
    text = ""
    for piece in filter(None, pieces):
        space = "" if not text or NO_SPACE_AFTER.search(text) else " "
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
