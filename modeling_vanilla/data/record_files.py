"""Reading JSON, CSV and Parquet: which columns hold the pair, and rows that aren't text.

Read here rather than by `load_dataset`, whose readers guess types from the values (a column of dates becomes time
stamps, the sentence "NA" becomes missing) and don't say which line they failed at.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.split_files import nearest
from modeling_vanilla.data.text_files import open_binary, read_lines
from modeling_vanilla.errors import first_line

ColumnPath = tuple[str, ...]  # ("source",), or ("translation", "en")
ROWS_PER_BATCH = 10_000
MOST_CSV_CHARACTERS = 2**31 - 1  # of a cell: what a C long holds everywhere
USUAL_COLUMNS = {  # of tasks other than translation, whose columns may also have languages' names
    "text_classification": (("text", "sentence", "source"), ("label", "labels", "target")),
}


class NoColumnError(ValueError):
    """There is no column of the name that was given, or of a usual one."""


def choose_columns(
    names: Iterable[str], translation_keys: Iterable[str] | None, args: DataArguments, where: str
) -> tuple[ColumnPath, ColumnPath]:
    """Picks the source and the target column.

    Args:
        names: The columns there are.
        translation_keys: The languages inside the column "translation", if there is such a column.
        args: `source_column` and `target_column` name them; else they are found as "source" and "target", "src" and
            "tgt", or by language, on their own or inside "translation": the first of these that has both sides.
        where: Names the table in an error.

    Raises:
        ValueError: There is no such column or language, it occurs twice, or both sides are the same.
    """
    names = list(names)
    columns = _choose(names, translation_keys, args, where)
    for column in columns:
        if names.count(column[0]) > 1:
            raise ValueError(f"{where}: there is more than one column {column[0]!r}: rename all but one")
    return columns


def _choose(
    names: list[str], translation_keys: Iterable[str] | None, args: DataArguments, where: str
) -> tuple[ColumnPath, ColumnPath]:
    if args.task == "language_modeling":
        if args.target_lang and args.target_column is None and args.target_lang in (translation_keys or ()):
            return ("translation", args.target_lang), ("translation", args.target_lang)
        usual = (args.target_lang, "text", "target", "source")
        column = _column(names, args.target_column, usual, "target_column", where)
        return column, column
    source: ColumnPath
    target: ColumnPath
    if args.task in USUAL_COLUMNS:
        sources, targets = USUAL_COLUMNS[args.task]
        source = _column(names, args.source_column, sources, "source_column", where)
        target = _column(names, args.target_column, targets, "target_column", where)
        if source == target:
            raise ValueError(f"{where}: text and label are both column {'.'.join(source)!r}: give two columns")
        return source, target
    if translation_keys is not None and args.source_column is None and args.target_column is None:
        languages = sorted(translation_keys)
        for option in ("source_lang", "target_lang"):
            language = getattr(args, option)
            if language is None:
                raise ValueError(f'{where}: give {option}: "translation" has {", ".join(languages)}')
            if language not in languages:
                raise ValueError(
                    f'{where}: no {option} {language!r}: "translation" has {", ".join(languages)}'
                    f"{nearest(language, languages)}"
                )
        source = ("translation", str(args.source_lang))
        target = ("translation", str(args.target_lang))
    elif args.source_column is None and args.target_column is None:
        usual_pairs = [("source", "target"), ("src", "tgt")]
        if args.source_lang and args.target_lang:
            usual_pairs.append((args.source_lang, args.target_lang))
        both = next((pair for pair in usual_pairs if {*pair} <= {*names}), None)
        if both is None:
            wanted = " or ".join(f"{one!r} and {other!r}" for one, other in usual_pairs)
            raise NoColumnError(
                f"{where}: no columns {wanted}: give source_column and target_column: the columns are "
                f"{', '.join(names) or 'none'}"
            )
        source, target = both[:1], both[1:]
    else:
        source = _column(names, args.source_column, ("source", "src", args.source_lang), "source_column", where)
        target = _column(names, args.target_column, ("target", "tgt", args.target_lang), "target_column", where)
    if source == target:
        raise ValueError(f"{where}: source and target are both column {'.'.join(source)!r}: give two columns")
    return source, target


def _column(names: list[str], asked: str | None, usual: Iterable[str | None], option: str, where: str) -> ColumnPath:
    if asked is not None:
        if asked not in names:
            raise NoColumnError(
                f"{where}: no {option} {asked!r}: the columns are {', '.join(names)}{nearest(asked, names)}"
            )
        return (asked,)
    wanted = [name for name in usual if name is not None]
    for name in wanted:
        if name in names:
            return (name,)
    raise NoColumnError(
        f"{where}: no column {' or '.join(map(repr, wanted))}: give {option}, one of {', '.join(names) or 'none'}"
    )


def check_value(value: Any, column: ColumnPath, strict: bool, where: str, numbers: bool = False) -> str:
    """
    A cell's text. A missing one is an empty text in training data, which is dropped there, and else an error; a whole
    number is its digits where `numbers` allows it (as a label), and else an error.
    """
    if numbers and isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if strict:
                what = "has half a surrogate pair, or bytes that aren't UTF-8"
                raise ValueError(f"{where}: {'.'.join(column)!r} {what}: repair it") from error
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if value is None and not strict:
        return ""
    what = "is missing" if value is None else f"is a {type(value).__name__}, not text"
    raise ValueError(f"{where}: {'.'.join(column)!r} {what}")


def read_json(path: Path, args: DataArguments, *, strict: bool) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a file of JSON objects: one a line, or all in one list.

    Raises:
        ValueError: A line isn't a JSON object or lacks a column, or the file can't be read.
    """
    columns: tuple[ColumnPath, ColumnPath] | None = None
    numbers = args.task == "text_classification"
    for where, record in _json_records(path, strict):
        if not isinstance(record, dict):
            raise ValueError(f'{where}: is a {type(record).__name__}, not an object such as {{"source": ...}}')
        if columns is None:
            translation = record.get("translation")
            columns = choose_columns(record, translation if isinstance(translation, dict) else None, args, where)
        values = []
        for column in columns:
            value: Any = record
            for key in column:
                value = value.get(key) if isinstance(value, dict) else None
            values.append(check_value(value, column, strict, where, numbers and column is columns[1]))
        yield values[0], values[1]


def _json_records(path: Path, strict: bool) -> Iterator[tuple[str, Any]]:
    """Records, each after where it is."""
    with open_binary(path) as file:
        is_list = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if is_list:
        text = "\n".join(read_lines(path, strict=strict))
        try:
            records = json.loads(text)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
            line, what = getattr(error, "lineno", 1), getattr(error, "msg", error)
            raise ValueError(f"{path}:{line}: isn't JSON: {what}") from error
        yield from ((f"{path}, record {number}", record) for number, record in enumerate(records, start=1))
        return
    for number, line in enumerate(read_lines(path, strict=strict), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = getattr(error, "msg", error)
            raise ValueError(f"{path}:{number}: isn't one JSON object a line: {what}") from error
        yield f"{path}:{number}", record


def read_csv(path: Path, args: DataArguments, *, strict: bool) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a comma-separated file with a header and RFC 4180 quoting.

    Raises:
        ValueError: A row is malformed or hasn't the header's fields, or the file can't be read.
    """
    csv.field_size_limit(MOST_CSV_CHARACTERS)
    rows = csv.reader((line + "\n" for line in read_lines(path, strict=strict)), strict=True)
    header: list[str] = []
    try:
        for row in rows:
            if not header:
                header = row
                if header:
                    columns = choose_columns(header, None, args, str(path))
                    indices = [header.index(column[0]) for column in columns]
            elif row:
                if len(row) != len(header):
                    raise ValueError(f"{path}:{rows.line_num}: has {len(row)} fields, the header has {len(header)}")
                yield row[indices[0]], row[indices[1]]
    except NoColumnError as error:
        raise ValueError(f"{error}: the first line has to name the columns") from error
    except csv.Error as error:
        raise ValueError(f"{path}:{rows.line_num}: isn't well-formed CSV: {error}") from error


def read_parquet(path: Path, args: DataArguments, *, strict: bool) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a Parquet file.

    Raises:
        ValueError: The file isn't Parquet, or its columns don't hold text.
    """
    with open_binary(path) as file:
        try:
            content = file if path.suffix == ".parquet" else io.BytesIO(file.read())
            table = pq.ParquetFile(content)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path}: isn't a Parquet file: {first_line(error)}") from error
        schema = table.schema_arrow
        keys = None
        if schema.names.count("translation") == 1 and pa.types.is_struct(schema.field("translation").type):
            keys = [field.name for field in schema.field("translation").type]
        columns = choose_columns(schema.names, keys, args, str(path))
        number = 0
        try:
            for batch in table.iter_batches(ROWS_PER_BATCH, columns=[column[0] for column in columns]):
                sides = []
                for column in columns:
                    values = batch.column(column[0])
                    for key in column[1:]:
                        values = values.field(key)
                    sides.append(_to_texts(values))
                for source, target in zip(*sides, strict=True):
                    number += 1
                    where = f"{path}, row {number}"
                    yield (
                        check_value(source, columns[0], strict, where),
                        check_value(target, columns[1], strict, where, args.task == "text_classification"),
                    )
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path}: is damaged after row {number:,}: {first_line(error)}") from error


def _to_texts(values: pa.Array) -> list[Any]:
    """The cells as Python's; bytes that aren't UTF-8, which the format doesn't rule out, as lone surrogates."""
    try:
        return values.to_pylist()
    except UnicodeDecodeError:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        cells = values.cast(pa.large_binary()).to_pylist()
        return [cell if cell is None else cell.decode("utf-8", "surrogateescape") for cell in cells]
