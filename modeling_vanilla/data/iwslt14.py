"""IWSLT 2014 German-English: from its archive to the files that the field trains on, as fairseq's script has them."""

import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

LANGUAGES = ("de", "en")
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
NOT_TEXT = re.compile(r"<(url|talkid|keywords|speaker|reviewer|translator)\b")
TAGS = re.compile(r"</?(title|description)>")
SEGMENT = re.compile(r"<seg id=\"\d+\">\s*(.*?)\s*</seg>")
CHUNK_BYTES = 1 << 20
MOST_TOKENS, MOST_RATIO, VALIDATION_EVERY = 175, 1.5, 23


def prepare_iwslt14(archive: str | Path, folder: str | Path) -> dict[str, int]:
    """
    Writes train, val and test in German and English, lower-cased and tokenised by Moses' rules.

    Training pairs of more than 175 tokens, or a ratio above 1.5, are dropped; every 23rd pair is for validation; the
    test set is dev2010, TEDX dev2012, tst2010, tst2011 and tst2012, one after the other.

    Args:
        archive: `de-en.tgz` of the campaign (wit3.fbk.eu, 2014-01).
        folder: where to write.

    Returns:
        the number of pairs in each file.

    Raises:
        ValueError: without the extra `moses`; when the archive can't be read or lacks a file, or the two languages
            have different numbers of lines.
    """
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise ValueError('preparing needs sacremoses: pip install "vanilla-transformer[moses]"') from error
    tokenizers = {lang: MosesTokenizer(lang=lang) for lang in LANGUAGES}
    train, test = _read(Path(archive))
    splits: dict[str, list[tuple[str, ...]]] = {"train": [], "val": [], "test": []}
    kept = 0
    for pair in _pairs(train, tokenizers):
        lengths = sorted(len(text.split()) for text in pair)
        if lengths[0] >= 1 and lengths[1] <= MOST_TOKENS and lengths[1] <= MOST_RATIO * lengths[0]:
            kept += 1
            splits["train" if kept % VALIDATION_EVERY else "val"].append(pair)
    splits["test"] = list(_pairs(test, tokenizers))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, pairs in splits.items():
            for side, lang in enumerate(LANGUAGES):
                text = "".join(f"{pair[side]}\n" for pair in pairs)
                (Path(folder) / f"{name}.{lang}").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{folder}: can't be written: {error.strerror}") from error
    return {name: len(pairs) for name, pairs in splits.items()}


def _pairs(texts: dict[str, list[str]], tokenizers: dict) -> Iterator[tuple[str, ...]]:
    for pair in zip(*(texts[lang] for lang in LANGUAGES), strict=True):
        yield tuple(
            tokenizers[lang].tokenize(text, return_str=True).lower() for lang, text in zip(LANGUAGES, pair, strict=True)
        )


def _read(archive: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The lines of the training and of the test files, by language; nothing is unpacked."""
    train: dict[str, list[str]] = {lang: [] for lang in LANGUAGES}
    test: dict[str, list[str]] = {lang: [] for lang in LANGUAGES}
    try:
        with tarfile.open(archive) as tar:
            members = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
            while tar.fileobj and tar.fileobj.read(CHUNK_BYTES):
                pass  # to the compressed data's end, where its check sum is

            def lines(name: str) -> list[str]:
                if name not in members:
                    raise ValueError(f"{archive}: has no {name}: is it the archive of IWSLT 2014, German-English?")
                file = tar.extractfile(members[name])
                return file.read().decode("utf-8").split("\n") if file else []

            for lang in LANGUAGES:
                train[lang] = _training_text(lines(f"train.tags.de-en.{lang}"))
                test[lang] = _test_text(lines, lang)
    except (OSError, tarfile.TarError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{archive}: can't be read as an archive of texts: {error}") from error
    for what, texts in (("training", train), ("test", test)):
        counts = [len(texts[lang]) for lang in LANGUAGES]
        if counts[0] != counts[1]:
            raise ValueError(f"{archive}: {what} files of {counts[0]:,} German and {counts[1]:,} English lines")
    return train, test


def _training_text(lines: list[str]) -> list[str]:
    if lines and not lines[-1]:  # after the last line's end; blank ones between are one side of a pair
        lines = lines[:-1]
    return [TAGS.sub("", line).strip() for line in lines if not NOT_TEXT.match(line.strip())]


def _test_text(lines: Callable[[str], list[str]], lang: str) -> list[str]:
    text = "\n".join("\n".join(lines(f"IWSLT14.{name}.de-en.{lang}.xml")) for name in TEST_SETS)
    return [match.replace("\u2019", "'") for match in SEGMENT.findall(text)]


__all__ = ["prepare_iwslt14"]
