"""What is wrong with the examples: lost or copied ones, sides that do not match, test sets that training shows."""

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from modeling_vanilla.training.doctor.finding import Finding

FEW = 3  # training examples of a label
MANY = 0.05  # a share of the pairs that is worth a warning ...
TOO_MANY = 0.5  # ... and one that no run survives


def corpus_report(job: Any, whole: int) -> Finding:
    size = len(job.corpus["train"])
    cut = f"; looked at the first {size:,} of {whole:,} examples" if size < whole else ""
    return Finding("ok", f"corpus: {job.data_report()}{cut}")


def check_corpus(job: Any, whole: int) -> Iterator[Finding]:
    """What the filters dropped, copies, lengths that don't go together, and test sentences that training shows."""
    report, train = job.report, job.corpus["train"]
    remedies = {
        "empty side": "one file may have lines that the other lacks",
        "invalid UTF-8": "convert the files to UTF-8, as with iconv",
        "control character": "the files may be binary, or in another encoding",
        "over-long": "raise max_length, or split the texts into sentences",
        "length ratio": "the lines may not translate each other: look at them, or raise max_length_ratio",
        "duplicate": "more of the same doesn't help; drop_duplicates: false keeps them",
    }
    for reason, count in report.dropped.items():
        share = count / report.total
        if share > MANY:
            level: Literal["warning", "error"] = "error" if share > TOO_MANY and reason != "duplicate" else "warning"
            yield Finding(level, f"corpus: {count:,} of {report.total:,} pairs dropped: {reason}; {remedies[reason]}")
    sources, targets = list(train["source"]), list(train["target"])
    if job.recipe.data.task == "translation":
        yield from check_sides(sources, targets)
    splits = {name: list(zip(split["source"], split["target"], strict=True)) for name, split in job.corpus.items()}
    yield from check_overlap(splits)
    yield corpus_report(job, whole)


def check_sides(sources: list[str], targets: list[str]) -> Iterator[Finding]:
    copies = sum(source.strip() == target.strip() for source, target in zip(sources, targets, strict=True))
    if (share := copies / len(sources)) > MANY:
        yield Finding(
            "error" if share > TOO_MANY else "warning",
            f"corpus: {share:.0%} of the targets are copies of their sources; the model will learn to copy: drop them",
        )
    lengths = np.log1p([[len(text) for text in side] for side in (sources, targets)])
    if len(sources) > 30 and lengths.std(1).min() > 0.1:
        together = float(np.corrcoef(lengths)[0, 1])
        if together < 0.3:
            yield Finding(
                "error" if together < 0.15 else "warning",
                f"corpus: lengths of source and target hardly go together (correlation {together:.2f}); the lines may "
                "not translate each other: is one file shifted or shuffled?",
            )


def check_overlap(splits: dict[str, list[Any]]) -> Iterator[Finding]:
    """Examples, as anything hashable, of other splits that training shows."""
    shown = set(splits["train"])
    for name, examples in splits.items():
        overlap = 0.0 if name == "train" else sum(example in shown for example in examples) / max(len(examples), 1)
        if overlap > MANY:
            yield Finding(
                "error" if overlap > TOO_MANY else "warning",
                f"corpus: {overlap:.0%} of {name} are in the training set; its score will mean nothing: take them out "
                "of the training set",
            )


def check_examples(job: Any, whole: int) -> Iterator[Finding]:
    """Labels that are rare or nearly all, and test examples that training shows."""
    counts = np.bincount(job.examples["train"]["label"], minlength=len(job.labels))
    commonest, rarest = int(counts.argmax()), int(counts.argmin())
    if (share := counts[commonest] / counts.sum()) > 0.95:
        yield Finding(
            "warning",
            f"corpus: {share:.0%} of the training examples have the label {job.labels[commonest]!r}; saying it always "
            "will score as much: add examples of the others",
        )
    if counts[rarest] < FEW:
        yield Finding(
            "warning",
            f"corpus: {counts[rarest]} training examples have the label {job.labels[rarest]!r}; it will hardly be "
            "learnt: add some, or take it out",
        )
    texts = "input_ids" in job.examples["train"].column_names
    yield from check_overlap(
        {
            name: list(split["source"]) if texts else [hashlib.sha256(row["image"].tobytes()).digest() for row in split]
            for name, split in job.corpus.items()
        }
    )
    yield corpus_report(job, whole)
