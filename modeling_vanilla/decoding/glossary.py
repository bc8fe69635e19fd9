"""Terms whose translation is prescribed."""

import re
import unicodedata
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from modeling_vanilla.data.text_files import read_tsv
from modeling_vanilla.decoding.lengths import NO_SPACES_BETWEEN_WORDS


class Glossary:
    """
    Finds prescribed terms in a source: whole words whatever their case, the longest where several match.

    Args:
        terms: the source's terms and their translations.

    Raises:
        ValueError: for an empty term or translation.
    """

    def __init__(self, terms: Mapping[str, str]):
        for term, translation in terms.items():
            if not term.strip() or not translation.strip():
                raise ValueError(f"glossary: {term!r} and its translation {translation!r} must both be given")
        self.terms: dict[str, str] = {}
        for term, text in terms.items():
            if self.terms.setdefault(_plain(term), text.strip()) != text.strip():
                raise ValueError(f"glossary: two translations for {term!r}: {self.terms[_plain(term)]!r} and {text!r}")
        self._pattern = _whole_words(self.terms) if terms else None

    @classmethod
    def read(cls, path: str | Path) -> "Glossary":
        """A file with a term, a tab and its translation on each line; a ValueError names the line that hasn't both."""
        terms: dict[str, str] = {}
        for number, fields in enumerate(read_tsv(Path(path), strict=True), start=1):
            term, translation = _plain(fields[0]), fields[1].strip()
            if not term or not translation:
                raise ValueError(f"{path}:{number}: needs a term and its translation: TERM TAB TRANSLATION")
            if terms.setdefault(term, translation) != translation:
                raise ValueError(f"{path}: two translations for {term!r}: {terms[term]!r} and {translation!r}")
        if not terms:
            raise ValueError(f"{path}: has no terms: TERM TAB TRANSLATION a line")
        return cls(terms)

    def translations(self, source: str) -> list[str]:
        """What the source's translation must contain, each once."""
        if self._pattern is None:
            return []
        return list(dict.fromkeys(self.terms[match.group()] for match in self._pattern.finditer(_plain(source))))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _whole_words(terms: Collection[str]) -> re.Pattern[str]:
    """The terms, the longest first, but none within a word in scripts that have spaces between words."""
    words: list[str] = []
    others: list[str] = []
    for term in sorted(terms, key=len, reverse=True):
        end = r"(?!\w)" if _is_letter(term[-1]) else ""
        (words if _is_letter(term[0]) else others).append(re.escape(term) + end)
    alternatives = [rf"(?<![\w{_marks()}])(?:{'|'.join(words)})"] * bool(words) + others
    return re.compile(f"(?:{'|'.join(alternatives)})(?![{_marks()}])")


@cache
def _marks() -> str:
    """Category M, the vowel signs and accents that go on with a letter, which for `re` are no part of a word."""
    return "".join(filter(_is_mark, map(chr, range(0x1F000))))


def _is_mark(character: str) -> bool:
    return unicodedata.category(character or " ").startswith("M")


def _is_letter(character: str) -> bool:
    """Of a script that has spaces between words."""
    return (character.isalnum() or _is_mark(character)) and not NO_SPACES_BETWEEN_WORDS.match(character)


# What a token that begins a word begins with, in our tokenizer, byte-level ones and SentencePiece's; WordPiece marks
# the others.
BEGINS, GOES_ON = (" ", "Ġ", "▁"), "##"
LATER_BYTE = re.compile(r"<0x[89A-F].>")  # a byte of a letter beyond ASCII


def word_mark(tokenizer: PreTrainedTokenizerBase) -> str:
    """
    How a tokenizer tells where words begin: one of `BEGINS`, or `GOES_ON`; "" where it has no such tokens.

    Raises:
        ValueError: where it marks the ends of words.
    """
    tokens = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    if any(token.endswith("</w>") for token in tokens):
        raise ValueError("a glossary needs a tokenizer that marks where words begin; this one marks their ends (</w>)")
    counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in (*BEGINS, GOES_ON)}
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] else ""


def going_on(tokenizer: PreTrainedTokenizerBase, mark: str) -> set[int]:
    """The tokens that go on with the word before them: they begin with a letter, and no mark of a word's beginning."""

    def is_part(character: str) -> bool:
        return _is_mark(character) or _is_letter(character)

    def goes_on(token: str) -> bool:
        if mark == GOES_ON:
            return token.startswith(mark) and is_part(token.removeprefix(mark)[:1])
        if mark and token.startswith(mark):
            return False
        if mark == "Ġ":  # each character of a token is a byte
            token = tokenizer.convert_tokens_to_string([token])
        return bool(LATER_BYTE.fullmatch(token)) or token.startswith("\ufffd") or is_part(token[:1])

    return {index for token, index in tokenizer.get_vocab().items() if goes_on(token)}


def phrase_ids(text: str, tokenizer: PreTrainedTokenizerBase, mark: str) -> list[int]:
    """
    The tokens of a phrase within a sentence, by the tokenizer's `word_mark`; without the space before it where the
    script has none.
    """
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if not ids:
        raise ValueError(f"glossary: the tokenizer makes nothing of {text!r}")
    first = tokenizer.convert_ids_to_tokens(ids[0])
    has_spaces = not NO_SPACES_BETWEEN_WORDS.match(text)
    if has_spaces and mark in BEGINS and not first.startswith(mark):  # it was taken for a sentence's beginning
        return tokenizer(f" {text}", add_special_tokens=False).input_ids
    if not has_spaces and mark in BEGINS and first.startswith(mark):
        bare = tokenizer.get_vocab().get(first[1:])
        ids = ids[1:] if bare is None else [bare, *ids[1:]]
    return ids


__all__ = ["Glossary", "going_on", "phrase_ids", "word_mark"]
