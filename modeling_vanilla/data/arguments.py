"""What a user may say about the data: where it lies, which columns and languages, and what to drop."""

import os
from dataclasses import dataclass, field
from pathlib import Path

TASKS = ("translation", "language_modeling", "text_classification", "image_classification")


@dataclass
class DataArguments:
    """Arguments of the data, for `HfArgumentParser` or as keywords.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> DataArguments(data_dir="corpus", source_lang="en", target_lang="de").max_length
        256
    """

    task: str = field(
        default="translation",
        metadata={
            "help": "What is learnt: translation; language_modeling (target_lang or target_column says of what text); "
            "text_classification (source_column and target_column: by default text and label); image_classification.",
            "choices": TASKS,
        },
    )
    data_dir: str | None = field(
        default=None,
        metadata={
            "help": "A folder of files (train.en and train.de, train.tsv, train.jsonl, train.csv or train.parquet; "
            "likewise val and test; each plain, .gz, .xz or .zst), one such file, or a DatasetDict saved to disk."
        },
    )
    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": 'A data set\'s id on the Hub, or "builtin" for the Chinese-English grammar of this package, '
            '"digits" for scikit-learn\'s images.'
        },
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The Hub data set's configuration."})
    source_lang: str | None = field(
        default=None,
        metadata={"help": 'Language to translate from, e.g. "en": a file suffix, or a key of a `translation` column.'},
    )
    target_lang: str | None = field(default=None, metadata={"help": 'Language to translate to, e.g. "de".'})
    train_prefix: str | None = field(
        default=None,
        metadata={
            "help": 'File name of the training split up to its last suffixes, e.g. "train.lc.norm.tok" for '
            "train.lc.norm.tok.en.gz. Default: train."
        },
    )
    validation_prefix: str | None = field(
        default=None,
        metadata={
            "help": "Likewise for the validation split. Default: val, valid, validation or dev; where there is none, "
            "a hundredth of the training pairs (1 to 1,000) is held out; of texts to classify a twentieth, of "
            "images a tenth."
        },
    )
    test_prefix: str | None = field(
        default=None,
        metadata={"help": "Likewise for the test sets; several are separated by commas. Default: all names in test*."},
    )
    source_column: str | None = field(
        default=None,
        metadata={
            "help": "Column with the source text. Default: source, src or the source language, the first that the "
            "target has too; "
            "of texts to classify text, sentence or source; of images image."
        },
    )
    target_column: str | None = field(
        default=None,
        metadata={
            "help": "Column with the target text. Default: target, tgt or the target language; "
            "of what is to classify label."
        },
    )
    max_length: int = field(
        default=256,
        metadata={"help": "Most tokens a side, </s> included; a longer training pair is dropped."},
    )
    max_length_ratio: float = field(
        default=9.0,
        metadata={
            "help": "Most tokens of one side per token of the other, </s> included; a training pair beyond it is "
            "dropped. The default is that of Moses' clean-corpus-n.perl."
        },
    )
    drop_duplicates: bool = field(
        default=True, metadata={"help": "Keep only the first of training pairs that are the same on both sides."}
    )
    max_train_samples: int | None = field(
        default=None,
        metadata={
            "help": "Use only the first so many training pairs, counted before any is dropped; "
            "of images a fixed random sample."
        },
    )
    max_eval_samples: int | None = field(
        default=None,
        metadata={
            "help": "Use only the first so many pairs of the validation and of each test set; "
            "of images a fixed random sample."
        },
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenise. Default: all cores this process may use."}
    )
    cache_dir: str | None = field(
        default=None, metadata={"help": "Where to keep what was read and tokenised. Default: the datasets library's."}
    )

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task={self.task!r}: must be one of {', '.join(TASKS)}")
        if self.task == "language_modeling":  # both sides of its pairs are one text
            self.source_lang, self.source_column = self.target_lang, self.target_column
        for name in ("data_dir", "cache_dir"):
            try:
                Path(getattr(self, name) or "").expanduser()
            except RuntimeError as error:
                what = "no home folder is known for this user: write the path out"
                raise ValueError(f"{name}={getattr(self, name)!r}: {what}") from error
        limits = {
            "max_length": 2,  # one token and </s>
            "max_length_ratio": 1,
            "max_train_samples": 1,
            "max_eval_samples": 1,
            "preprocessing_num_workers": 1,
        }
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} is below {least}, its least value")

    @property
    def num_workers(self) -> int:
        """Processes that tokenise: `preprocessing_num_workers`, or the cores that this process may run on."""
        if self.preprocessing_num_workers is not None:
            return self.preprocessing_num_workers
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def cache_folder(self) -> Path:
        """Makes and returns the folder for read and tokenised pairs: one of our own in `cache_dir`.

        Raises:
            ValueError: It can't be written.
        """
        import datasets

        folder = Path(self.cache_dir or datasets.config.HF_DATASETS_CACHE).expanduser() / "vanilla_transformer"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cache_dir: {folder} can't be made: {error.strerror}: give another cache_dir") from error
        if not os.access(folder, os.W_OK):
            raise ValueError(f"cache_dir: {folder} can't be written: give another cache_dir")
        return folder
