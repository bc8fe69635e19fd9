"""From files, the Hub or the built-in grammar to pairs of texts: one DatasetDict, whatever the format."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Translation,
    concatenate_datasets,
    load_dataset,
    load_from_disk,
)

from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.arrow_files import kept_batches, write_arrow
from modeling_vanilla.data.record_files import (
    USUAL_COLUMNS,
    choose_columns,
    read_csv,
    read_json,
    read_parquet,
)
from modeling_vanilla.data.split_files import (
    TEST_NAME,
    VALIDATION_NAMES,
    SplitFiles,
    find_split_files,
    named_tests,
    nearest,
)
from modeling_vanilla.data.text_files import CONTROL_CHARACTERS, REPLACEMENT, file_digest, read_parallel, read_tsv
from modeling_vanilla.errors import first_line

logger = logging.getLogger(__name__)

BUILT_IN = "builtin"
BUILT_IN_DIRECTION, BUILT_IN_SPLITS = ("zh", "en"), ("train", "validation", "test")
COLUMNS = ["source", "target"]
SCHEMA = pa.schema([(column, pa.string()) for column in COLUMNS])
SAVED_BY_DATASETS = ("dataset_dict.json", "state.json")  # a DatasetDict, and a lone Dataset: a training split
RECORD_READERS = {"json": read_json, "csv": read_csv, "parquet": read_parquet}
HELD_OUT_FRACTION, HELD_OUT_MOST, HELD_OUT_SEED = 0.01, 1_000, 0
HELD_OUT_FRACTION_OF_LABELLED = 0.05  # of texts to classify, which are fewer
BYTES_A_TOKEN = 8  # of text as a tokenizer cuts it, at most, about
READER_VERSION = 3  # part of every cache key: raise it when the same files would read differently
PAIRS_PER_BATCH = 10_000


class PairTexts:
    """Both sides of a corpus as one iterable of texts that can be read again, for `train_tokenizer`.

    Args:
        pairs: A data set with the string columns "source" and "target".
    """

    columns = COLUMNS

    def __init__(self, pairs: Dataset) -> None:
        self.pairs = pairs

    def __iter__(self) -> Iterator[str]:
        for batch in self.pairs.iter(PAIRS_PER_BATCH):
            for column in self.columns:
                yield from filter(_is_text, batch[column])


class SourceTexts(PairTexts):
    """The sources alone, where the other side is a label or the same text."""

    columns = COLUMNS[:1]


def load_corpus(args: DataArguments) -> DatasetDict:
    """Loads every split of a parallel corpus.

    Text files are read once and kept as memory-mapped Arrow files, found again by the files' content: an edited file
    is read anew, a moved one is not.

    Args:
        args: Where the data is (`data_dir` or `dataset_name`) and how it is named.

    Returns:
        The splits "train", "validation" and any test sets under their own names, each with exactly the string
        columns "source" and "target". A training line that wasn't UTF-8 holds U+FFFD, for `prepare_pairs` to drop.
        Without a validation split, min(1000, 1 %) of the training pairs (at least one) are held out, from those
        with text on both sides. A pair that occurs twice may then be in both splits.

    Raises:
        ValueError: The user's data or arguments are at fault; one line that names the file, the line and the remedy.

    Example:
        >>> corpus = load_corpus(DataArguments(dataset_name="builtin"))
        >>> corpus["train"].column_names
        ['source', 'target']
    """
    if (args.data_dir is None) == (args.dataset_name is None):
        given = "both are given" if args.data_dir is not None else "neither is given"
        raise ValueError(f'give one of data_dir and dataset_name ("builtin" needs no files): {given}')
    where = f"data_dir={args.data_dir!r}" if args.data_dir is not None else f"dataset_name={args.dataset_name!r}"
    if args.dataset_name == BUILT_IN:
        splits = _built_in(where, args)
    elif args.dataset_name is not None:
        splits = _from_hub(where, args)
    elif any((Path(str(args.data_dir)).expanduser() / name).is_file() for name in SAVED_BY_DATASETS):
        splits = _from_disk(where, args)
    else:
        splits = {name: _read_files(files, name, args) for name, files in find_split_files(args).items()}
    for name, pairs in splits.items():
        if not len(pairs):
            raise ValueError(f"{where}: the {name} split has no pairs: give at least one, or take its files away")
    if "validation" not in splits:
        splits["train"], splits["validation"] = _hold_out(splits["train"], where, args)
    for name, pairs in splits.items():
        most = args.max_train_samples if name == "train" else args.max_eval_samples
        if most is not None and most < len(pairs):
            splits[name] = pairs.select(range(most))
    return DatasetDict(splits)


def _hold_out(train: Dataset, where: str, args: DataArguments) -> tuple[Dataset, Dataset]:
    if len(train) < 2:
        raise ValueError(f"{where}: one training pair and no validation split: give at least two pairs")
    classifying = args.task == "text_classification"
    fraction = HELD_OUT_FRACTION_OF_LABELLED if classifying else HELD_OUT_FRACTION
    left = Counter(train["target"][:]) if classifying else Counter()
    limits = () if classifying else (args.max_length, args.max_length_ratio)
    count = max(1, min(HELD_OUT_MOST, int(len(train) * fraction)))
    chosen: list[int] = []
    order = np.random.default_rng(HELD_OUT_SEED).permutation(len(train))
    for start in range(0, len(train), PAIRS_PER_BATCH):
        rows = order[start : start + PAIRS_PER_BATCH].tolist()
        pairs = train[rows]
        both = zip(rows, pairs["source"], pairs["target"], strict=True)
        for row, source, target in both:
            if not (_is_text(source) and _is_text(target)) or (classifying and left[target] < 2):
                continue  # training must keep an example of each label
            if limits and not _is_ordinary(source, target, *limits):
                continue
            left[target] -= 1
            chosen.append(row)
        if len(chosen) >= count:
            break
    if not chosen and classifying:
        raise ValueError(f"{where}: no validation split, and no label with two examples, to hold one out: give one")
    if not chosen:
        raise ValueError(f"{where}: no validation split, and no training pair that is fit to be held out: give one")
    held_out = np.zeros(len(train), dtype=bool)
    held_out[chosen[:count]] = True
    count = int(held_out.sum())
    logger.warning(
        "%s: there is no validation split, so %s of the %s training pairs are held out", where, count, len(train)
    )
    rule = ("held out", HELD_OUT_SEED, classifying, limits, count, train._fingerprint)
    digests = [_digest(*rule, side) for side in ("train", "validation")]
    return (
        _cached(kept_batches(train, ~held_out, COLUMNS), digests[0], args),
        _cached(kept_batches(train, held_out, COLUMNS), digests[1], args),
    )


def _is_text(text: str | None) -> bool:
    return text is not None and not text.isspace() and text != "" and REPLACEMENT not in text


def _is_ordinary(source: str, target: str, max_length: int, max_length_ratio: float) -> bool:
    """Whether training would most likely keep a pair, as far as can be told before there is a tokenizer."""
    if CONTROL_CHARACTERS.search(source) or CONTROL_CHARACTERS.search(target):
        return False
    lengths = len(source), len(target)
    size = max(len(text.encode()) for text in (source, target))
    return size <= BYTES_A_TOKEN * max_length and max(lengths) <= max_length_ratio * min(lengths)


def _without_header(pairs: Iterator[tuple[str, str]], args: DataArguments) -> Iterator[tuple[str, str]]:
    """A TSV file's pairs; its first line is left out where it names columns."""
    usual = (("source", "src", args.source_lang), ("target", "tgt", args.target_lang))
    texts, labels = USUAL_COLUMNS.get(args.task, usual)
    for number, pair in enumerate(pairs):
        source, target = (side.strip().lower() for side in pair)
        if number or source not in texts or target not in labels:
            yield pair


def _read_files(files: SplitFiles, split: str, args: DataArguments) -> Dataset:
    # An unreadable pair is dropped from training, and an error where it would be scored; classifiers drop nothing.
    strict = split != "train" or args.task == "text_classification"
    choice: tuple[str | None, ...] = ()  # the arguments that decide what is read from the file
    if files.format == "parallel":
        pairs = read_parallel(files.paths[0], files.paths[1], strict=strict)
    elif files.format == "tsv":
        pairs = _without_header(read_tsv(files.paths[0], strict=strict), args)
        choice = (args.task, args.source_lang, args.target_lang)
        if args.task == "language_modeling":
            pairs = ((target, target) for _, target in pairs)
    else:
        pairs = RECORD_READERS[files.format](files.paths[0], args, strict=strict)
        choice = (args.task, args.source_column, args.target_column, args.source_lang, args.target_lang)
    return _cached(_batches(pairs), _digest(files.format, strict, choice, file_digest(*files.paths)), args)


def _built_in(where: str, args: DataArguments) -> dict[str, Dataset]:
    from modeling_vanilla.data import grammar

    for option, language in zip(("source_lang", "target_lang"), BUILT_IN_DIRECTION, strict=True):
        if option == "source_lang" and args.task == "language_modeling":
            continue
        if getattr(args, option) not in (None, language):
            raise ValueError(f"{where}: {option}={getattr(args, option)!r} must be {language!r}, or not given")
    splits = cache(grammar.built_in_splits)

    def batches(name: str) -> Iterator[pa.RecordBatch]:
        pairs = splits()[name]
        yield from _batches(((target, target) for _, target in pairs) if args.task == "language_modeling" else pairs)

    program = file_digest(*sorted(Path(str(grammar.__file__)).parent.glob("*.py")))  # what decides the sentences
    return {name: _cached(batches(name), _digest(BUILT_IN, program, name, args.task), args) for name in BUILT_IN_SPLITS}


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr((READER_VERSION, *parts)).encode()).hexdigest()[:32]


def _batches(pairs: Iterable[tuple[str, str]]) -> Iterator[pa.RecordBatch]:
    iterator = iter(pairs)
    while batch := list(islice(iterator, PAIRS_PER_BATCH)):
        yield pa.record_batch([pa.array(side, pa.string()) for side in zip(*batch, strict=True)], schema=SCHEMA)


def _cached(batches: Iterable[pa.RecordBatch], digest: str, args: DataArguments) -> Dataset:
    """The batches as a memory-mapped data set. They are drawn only if there is no file of this digest yet."""
    path = args.cache_folder() / f"pairs-{digest}.arrow"
    if not path.exists():
        write_arrow(path, SCHEMA, batches)
    return Dataset.from_file(str(path)).select_columns(COLUMNS, new_fingerprint=digest)


def _from_disk(where: str, args: DataArguments) -> dict[str, Dataset]:
    try:
        loaded = load_from_disk(str(Path(str(args.data_dir)).expanduser()))
    except Exception as error:  # whatever its format's reader raises
        raise ValueError(f"{where}: cannot be read as a saved DatasetDict: {root_cause(error)}") from error
    return _choose_splits(DatasetDict(train=loaded) if isinstance(loaded, Dataset) else loaded, where, args)


def _from_hub(where: str, args: DataArguments) -> dict[str, Dataset]:
    try:
        loaded = load_dataset(str(args.dataset_name), args.dataset_config_name, cache_dir=args.cache_dir)
    except Exception as error:  # a wrong name, no network, a missing configuration, damaged files: each its own type
        raise ValueError(f"{where}: cannot be loaded: {root_cause(error)}") from error
    return _choose_splits(loaded, where, args)


def root_cause(error: BaseException) -> str:
    """What the error behind this one says, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _choose_splits(loaded: DatasetDict, where: str, args: DataArguments) -> dict[str, Dataset]:
    """A DatasetDict's splits under our names, as pairs."""

    def one_of(names: Iterable[str], option: str) -> str | None:
        found = [name for name in names if name in loaded]
        if len(found) > 1:
            raise ValueError(f"{where}: has the splits {', '.join(found)}: choose one with {option}")
        return found[0] if found else None

    def named(name: str) -> str:
        if name not in loaded:
            raise ValueError(f"{where}: no split {name!r}: there are {', '.join(loaded)}{nearest(name, loaded)}")
        return name

    chosen = {"train": named(args.train_prefix or "train")}
    validation = args.validation_prefix and named(args.validation_prefix)
    validation = validation or one_of(VALIDATION_NAMES, "validation_prefix")
    if validation:
        chosen["validation"] = validation
    tests = map(named, named_tests(args.test_prefix)) if args.test_prefix else filter(TEST_NAME.fullmatch, loaded)
    chosen |= {name: name for name in tests}
    if args.task == "text_classification":
        for name in chosen.keys() - {"train", "validation"}:
            _, label = choose_columns(loaded[name].column_names, None, args, f"{where}, {name}")
            if has_no_labels(loaded[name], ".".join(label)):
                logger.warning("%s: %s is left out: it has no labels", where, name)
                del chosen[name]
    return {split: _as_pairs(loaded[name], f"{where}, {name}", split, args) for split, name in chosen.items()}


def has_no_labels(table: Dataset, column: str) -> bool:
    """Whether no example is labelled, as in a test set whose answers are kept back."""
    if column not in table.column_names:
        return False
    numbered = isinstance(table.features[column], ClassLabel)  # where -1 is none
    return all(label is None or (numbered and label < 0) for label in table[column][:])


def _as_pairs(table: Dataset, where: str, split: str, args: DataArguments) -> Dataset:
    """A data set's two text columns as "source" and "target"."""
    keys = None
    if "translation" in table.column_names:
        feature = table.features["translation"]
        keys = feature.languages if isinstance(feature, Translation) else feature if isinstance(feature, dict) else None
    chosen = choose_columns(table.column_names, keys, args, where)
    if len(chosen[0]) > 1:
        table = table.flatten()
    names = [".".join(column) for column in chosen]
    if args.task == "text_classification":
        table = _labels_as_text(table, names[1])
    for name in names:
        kind = getattr(table.features[name], "dtype", None)
        if kind not in ("string", "large_string"):
            raise ValueError(f"{where}: column {name!r} holds {kind or 'lists or objects'}, not text")
    sides = zip(names, COLUMNS, strict=True)  # one at a time: both may be the same column
    pairs = concatenate_datasets(
        [table.select_columns([name]).rename_columns({name: column}) for name, column in sides], axis=1
    )
    features = Features.from_arrow_schema(SCHEMA)
    if pairs.features != features:
        pairs = pairs.cast(features, load_from_cache_file=False)  # which is found by the fingerprint too
    if split != "train":  # where a missing side is dropped as empty
        _check_nothing_missing(pairs, where)
    # The library's fingerprint says how a data set was made, which other texts may share.
    return pairs.select_columns(COLUMNS, new_fingerprint=_digest("data set", _content_digest(pairs)))


def _content_digest(pairs: Dataset) -> str:
    digest = hashlib.sha256()
    for table in pairs.with_format("arrow").iter(PAIRS_PER_BATCH):
        for batch in table.combine_chunks().to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()


def _labels_as_text(table: Dataset, column: str) -> Dataset:
    feature = table.features[column]
    if getattr(feature, "dtype", "").startswith(("int", "uint", "bool")):
        names = feature.names if isinstance(feature, ClassLabel) else None
        known = (None if label is None or (names and label < 0) else label for label in table[column][:])
        texts = [label if label is None else names[label] if names else str(label) for label in known]
        table = table.remove_columns(column).add_column(column, texts)
    return table


def _check_nothing_missing(pairs: Dataset, where: str) -> None:
    start = 1
    for table in pairs.with_format("arrow").iter(PAIRS_PER_BATCH):
        for column in COLUMNS:
            if table[column].null_count:
                row = start + pc.index(table[column].is_null(), True).as_py()
                raise ValueError(f"{where}, row {row}: the {column} is missing: fill it in or take the row out")
        start += len(table)
