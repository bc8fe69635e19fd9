"""Which files of a folder hold which split: train.en + train.de, val.tsv.gz, test_2016_flickr.jsonl, ..."""

import difflib
import itertools
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.text_files import COMPRESSIONS

logger = logging.getLogger(__name__)

FORMATS = {".tsv": "tsv", ".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
VALIDATION_NAMES = ("val", "valid", "validation", "dev")
TEST_NAME = re.compile(r"test[^.]*")  # no dot: test.lc.norm.tok.en is another text than test.en
FILES_IN_MESSAGE = 12


@dataclass(frozen=True)
class SplitFiles:
    """One split's files: a source and a target file if `format` is "parallel", otherwise one."""

    format: str
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class _Named:
    """A file's name in parts: train.lc.en.gz has the stem "train.lc" and the suffix ".en"."""

    stem: str
    suffix: str
    path: Path


def find_split_files(args: DataArguments) -> dict[str, SplitFiles]:
    """Finds the files of each split.

    Args:
        args: `data_dir` names a folder, or one file, which is the training split.

    Returns:
        Split names ("train", "validation" if there is one, and each test set's own) to files.

    Raises:
        ValueError: `data_dir` or the training split doesn't exist, a side of it is missing, or two files fit.
    """
    place = Path(str(args.data_dir)).expanduser()
    if place.is_file():
        name = _parse(place)
        for option in ("train_prefix", "validation_prefix", "test_prefix"):
            if getattr(args, option):
                raise ValueError(f"data_dir={args.data_dir!r}: is one file, so {option} has no effect: give its folder")
        if name.suffix not in FORMATS:
            raise ValueError(
                f"{place}: a single file must be {_listed(FORMATS)}: for parallel text give its folder as data_dir"
            )
        return {"train": SplitFiles(FORMATS[name.suffix], (place,))}
    if not place.is_dir():
        raise ValueError(f"data_dir={args.data_dir!r} doesn't exist (working directory: {Path.cwd()})")

    splits = {"train": _find(place, [args.train_prefix or "train"], "train_prefix", args)}
    validation_names = [args.validation_prefix] if args.validation_prefix else list(VALIDATION_NAMES)
    if args.validation_prefix or _sides(place, validation_names, args):
        splits["validation"] = _find(place, validation_names, "validation_prefix", args)
    if args.test_prefix:
        for test, prefix in named_tests(args.test_prefix).items():
            splits[test] = _find(place, [prefix], "test_prefix", args)
        return splits
    for stem in sorted({name.stem for name in _scan(place) if TEST_NAME.fullmatch(name.stem)}):
        if _options(place, [stem], args):
            splits[stem] = _find(place, [stem], "test_prefix", args)
        elif sides := _sides(place, [stem], args):
            logger.warning("%s: %s is left out: its other side is missing", place, sides[0].path.name)
    return splits


def named_tests(test_prefix: str) -> dict[str, str]:
    """
    The prefixes of test sets by the sets' names, which are names of files in the model's folder too.

    Raises:
        ValueError: two have the same name, or one has that of a split that isn't for testing.
    """
    named: dict[str, str] = {}
    for prefix in (part.strip() for part in test_prefix.split(",")):
        path = Path(prefix)
        name = path.name if path.is_absolute() or ".." in path.parts else prefix
        if name in ("train", "validation") or name in named:
            raise ValueError(
                f"test_prefix={test_prefix!r}: {name!r} is the name of another split here: rename its files"
            )
        named[name] = prefix
    return named


def _parse(path: Path) -> _Named:
    plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    return _Named(plain.stem, plain.suffix, path)


def _scan(folder: Path) -> list[_Named]:
    if not folder.is_dir():
        return []
    return [_parse(path) for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]


def _named(folder: Path, stems: Iterable[str]) -> list[_Named]:
    # A prefix may lead into a sub-folder.
    return [name for stem in stems for name in _scan((folder / stem).parent) if name.stem == Path(stem).name]


def _sides(folder: Path, stems: Iterable[str], args: DataArguments) -> list[_Named]:
    """The files that hold one of the stems, or one side of it."""
    suffixes = {*FORMATS, f".{args.source_lang}", f".{args.target_lang}"}
    return [name for name in _named(folder, stems) if name.suffix in suffixes]


def _options(folder: Path, stems: Iterable[str], args: DataArguments) -> list[SplitFiles]:
    """Every way to read one of the stems as a split."""
    options = []
    for stem in stems:
        names = _named(folder, [stem])
        options += [SplitFiles(FORMATS[name.suffix], (name.path,)) for name in names if name.suffix in FORMATS]
        sides = [
            [name.path for name in names if language and name.suffix == f".{language}"]
            for language in (args.source_lang, args.target_lang)
        ]
        options += [SplitFiles("parallel", pair) for pair in itertools.product(*sides)]
    return options


def _find(folder: Path, stems: list[str], option: str, args: DataArguments) -> SplitFiles:
    options = _options(folder, stems, args)
    one_side = args.source_lang == args.target_lang and args.task != "language_modeling"
    if one_side and any(way.format == "parallel" for way in options):
        raise ValueError(f"source_lang and target_lang are both {args.source_lang!r}: give two languages")
    if len(options) == 1:
        return options[0]
    if options:
        files = sorted({path.name for way in options for path in way.paths})
        apart = len({_parse(Path(file)).stem for file in files}) > 1
        remedy = f"choose with {option}" if apart else "rename what isn't to be read, or take it away"
        raise ValueError(f"{folder}: {_listed(files)} are more than one {stems[0]} split: {remedy}")

    named = _named(folder, stems)
    languages = sorted({name.suffix.removeprefix(".") for name in named if name.suffix})
    if languages:
        stem = named[0].stem
        if not (args.source_lang and args.target_lang):
            needed = "target_lang" if args.task == "language_modeling" else "source_lang and target_lang"
            raise ValueError(f"{folder}: give {needed}: there are {_listed(f'{stem}.{x}' for x in languages)}")
        for language in (args.source_lang, args.target_lang):
            if language not in languages:
                raise ValueError(
                    f"{folder}: no {stem}.{language}: there are {_listed(f'{stem}.{x}' for x in languages)}"
                    f"{nearest(language, languages)}; give source_lang and target_lang"
                )
    sides = f"{stems[0]}.{args.source_lang or 'LANG'} + {stems[0]}.{args.target_lang or 'LANG'}"
    there = sorted({name.path.name for stem in stems for name in _scan((folder / stem).parent)})
    raise ValueError(
        f"{folder}: no {' or '.join(stems)} split: looked for {sides}, "
        f"{_listed(stems[0] + suffix for suffix in FORMATS)} (plain or {', '.join(COMPRESSIONS)}); "
        f"files there: {_listed(there) or 'none'}; rename them or give {option}"
        f"{nearest(stems[0], [_parse(Path(name)).stem for name in there])}"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """' (did you mean ...?)' for a message, or nothing if no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - FILES_IN_MESSAGE
    return ", ".join(names[:FILES_IN_MESSAGE]) + (f" and {more} more" if more > 0 else "")
