"""From pairs of texts to filtered pairs of token ids: once, in parallel, memory-mapped, found again by content."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from filelock import FileLock
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.arrow_files import kept_batches, write_arrow
from modeling_vanilla.data.text_files import CONTROL_CHARACTERS, REPLACEMENT
from modeling_vanilla.data.tokenizer import tokenizer_digest

PREPARATION_VERSION = 1  # part of every cache key: raise it when the same pairs would come out differently
PAIRS_PER_BATCH = 1_000
PAIRS_PER_PROCESS = 10_000  # fewer are tokenised sooner than another process starts

# Why a pair is dropped: the first that holds.
KEPT = 0
REASONS = ("empty side", "invalid UTF-8", "control character", "over-long", "length ratio", "duplicate")
EMPTY, INVALID, CONTROL, OVER_LONG, RATIO, DUPLICATE = range(1, len(REASONS) + 1)

FEATURES = Features(
    {
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "source_length": Value("int32"),
        "target_length": Value("int32"),
        "reason": Value("int8"),
        "hash": Value("uint64"),
    }
)
COLUMNS = ["input_ids", "labels", "source_length", "target_length"]  # without those that only filtering needs
REPORT_KEY = b"filter_report"  # in the Arrow file's metadata, so that a later run has the report as well


@dataclass
class FilterReport:
    """How many pairs there were, how many are left, and why the others were dropped."""

    total: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.dropped:
            return f"kept all {self.total:,} pairs"
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.items())
        return f"kept {self.kept:,} of {self.total:,} pairs ({self.kept / self.total:.1%}); dropped: {reasons}"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dictionaries and numbers, for JSON."""
        return asdict(self)


def prepare_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, args: DataArguments, *, training: bool
) -> tuple[Dataset, FilterReport]:
    """Filters (only while `training`) and tokenises pairs of texts.

    Args:
        pairs: String columns "source" and "target", as in a split of `load_corpus`.
        tokenizer: Ends every text in `</s>`; the target goes through `text_target`.
        args: The limits, the number of processes and the cache.
        training: Whether to drop pairs. Those that are scored are never dropped or cut.

    Returns:
        The pairs as `input_ids` and `labels` (lists of int32), with `source_length` and `target_length` (int32,
        tokens, `</s>` included), and the report.

    Raises:
        ValueError: No pair is left.
    """
    if not len(pairs):
        raise ValueError("there are no pairs to prepare")
    fingerprint = _fingerprint(pairs, tokenizer, args, training)
    path = args.cache_folder() / f"tokens-{fingerprint}.arrow"
    if not path.exists():
        lock = path.with_name(f"{path.name}.lock")
        with FileLock(lock):  # another process may be at it
            if not path.exists():
                _prepare(path, fingerprint, pairs, tokenizer, args, training)
        lock.unlink(missing_ok=True)  # who finds the result asks for no lock
    with pa.memory_map(str(path)) as file:
        report = FilterReport(**json.loads(pa.ipc.open_stream(file).schema.metadata[REPORT_KEY]))
    if not report.kept:
        raise ValueError(f"no pair is left to train on: {report}")
    return Dataset.from_file(str(path)).select_columns(COLUMNS, new_fingerprint=fingerprint), report


def _prepare(
    path: Path,
    fingerprint: str,
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    args: DataArguments,
    training: bool,
) -> None:
    processes = max(1, min(args.num_workers, len(pairs) // PAIRS_PER_PROCESS))
    every_pair = path.with_name(f"unfiltered-{fingerprint}.arrow")
    with _no_threads_in_tokenizer():
        tokens = pairs.map(
            _tokenise,
            fn_kwargs={
                "tokenizer": tokenizer,
                "max_length": args.max_length,
                "max_length_ratio": args.max_length_ratio,
                "training": training,
            },
            batched=True,
            batch_size=PAIRS_PER_BATCH,
            remove_columns=pairs.column_names,
            features=FEATURES,
            num_proc=processes if processes > 1 else None,
            cache_file_name=str(every_pair),
            load_from_cache_file=True,  # what an interrupted run has finished
            new_fingerprint=fingerprint,
            desc="Tokenising",
        )
    reasons = tokens.data.column("reason").to_numpy().copy()
    if training and args.drop_duplicates:
        mark_duplicates(reasons, tokens.data.column("hash").to_numpy())
    counts = np.bincount(reasons, minlength=len(REASONS) + 1)
    report = FilterReport(
        total=len(pairs),
        kept=int(counts[KEPT]),
        dropped={reason: int(count) for reason, count in zip(REASONS, counts[1:], strict=True) if count},
    )
    schema = Features({column: FEATURES[column] for column in COLUMNS}).arrow_schema
    schema = schema.with_metadata({REPORT_KEY: json.dumps(report.to_dict())})
    write_arrow(path, schema, kept_batches(tokens, reasons == KEPT, COLUMNS))
    del tokens
    for file in path.parent.glob(f"{every_pair.stem}*.arrow"):
        file.unlink(missing_ok=True)


def _fingerprint(pairs: Dataset, tokenizer: PreTrainedTokenizerBase, args: DataArguments, training: bool) -> str:
    limits = (args.max_length, args.max_length_ratio, args.drop_duplicates) if training else ()
    parts = (PREPARATION_VERSION, pairs._fingerprint, tokenizer_digest(tokenizer), training, limits)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@contextmanager
def _no_threads_in_tokenizer() -> Iterator[None]:
    """Keeps the tokenizer to one thread a process: its threads don't survive a fork, and would wait for ever."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def mark_duplicates(reasons: np.ndarray, hashes: np.ndarray) -> None:
    """Marks as duplicate, in place, every kept pair whose hash an earlier kept pair has.

    Sorting takes three arrays of 8 bytes a pair at its peak (about 120 MB for 5 million pairs). Two different pairs
    among n share a 64-bit hash with a probability of about n²/2⁶⁵: less than one in a million for 5 million pairs.

    Args:
        reasons: Reason codes, one a pair.
        hashes: 64-bit hashes, one a pair; those of pairs that aren't kept play no part if they are 0.
    """
    order = np.argsort(hashes, kind="stable")  # stable: the first of equals stays first
    ordered = hashes[order]
    repeated = order[1:][ordered[1:] == ordered[:-1]]
    reasons[repeated[reasons[repeated] == KEPT]] = DUPLICATE


def _tokenise(
    batch: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    max_length_ratio: float,
    training: bool,
) -> pa.Table:
    sources, targets = ([text or "" for text in batch[side]] for side in ("source", "target"))
    input_ids, labels = _encode(tokenizer, sources, targets)
    reasons, hashes = [KEPT] * len(sources), [0] * len(sources)
    if training:
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            lengths = len(input_ids[index]), len(labels[index])
            reasons[index] = _text_reason(source, target) or _length_reason(lengths, max_length, max_length_ratio)
            if reasons[index] == KEPT:
                hashes[index] = _hash(source, target)
            else:
                input_ids[index] = labels[index] = []
    source_lengths, target_lengths = [len(ids) for ids in input_ids], [len(ids) for ids in labels]
    schema = FEATURES.arrow_schema
    columns = zip((input_ids, labels, source_lengths, target_lengths, reasons, hashes), schema.types, strict=True)
    return pa.table([pa.array(column, kind) for column, kind in columns], schema=schema)


def _hash(source: str, target: str) -> int:
    # No kept text has a NUL, so it can't be that two pairs differ only in where the source ends.
    return int.from_bytes(hashlib.blake2b(f"{source}\0{target}".encode(), digest_size=8).digest(), "little")


def _encode(
    tokenizer: PreTrainedTokenizerBase, sources: list[str], targets: list[str]
) -> tuple[list[list[int]], list[list[int]]]:
    if type(tokenizer) is PreTrainedTokenizerFast:  # as the call below, without half its time in attention masks
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = tokenizer.split_special_tokens
        source_encodings, target_encodings = backend.encode_batch_fast(sources), backend.encode_batch_fast(targets)
        return [encoding.ids for encoding in source_encodings], [encoding.ids for encoding in target_encodings]
    encoded = tokenizer(sources, text_target=targets, return_attention_mask=False, verbose=False)
    return encoded["input_ids"], encoded["labels"]


def _text_reason(source: str, target: str) -> int:
    if not source or not target or source.isspace() or target.isspace():
        return EMPTY
    if REPLACEMENT in source or REPLACEMENT in target:
        return INVALID
    if CONTROL_CHARACTERS.search(source) or CONTROL_CHARACTERS.search(target):
        return CONTROL
    return KEPT


def _length_reason(lengths: tuple[int, int], max_length: int, max_length_ratio: float) -> int:
    if max(lengths) > max_length:
        return OVER_LONG
    if max(lengths) > max_length_ratio * min(lengths):
        return RATIO
    return KEPT
