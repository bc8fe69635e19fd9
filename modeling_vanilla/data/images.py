"""Images with labels: scikit-learn's digits, a folder of images, or a data set of the Hub's kind."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, Image, load_dataset, load_from_disk
from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

from modeling_vanilla.data.arguments import DataArguments
from modeling_vanilla.data.corpus import has_no_labels, root_cause
from modeling_vanilla.data.split_files import TEST_NAME, VALIDATION_NAMES

logger = logging.getLogger(__name__)

DIGITS = "digits"
HELD_OUT_SEED = 0
ARCHIVES = (".zip", ".tar", ".tgz")  # the library opens them
TEST_FRACTION, VALIDATION_FRACTION = 0.2, 0.1


def load_images(args: DataArguments) -> tuple[DatasetDict, list[str]]:
    """
    Loads images and their labels.

    Args:
        args: `dataset_name="digits"` for scikit-learn's 1,797 digits of 8 × 8 pixels, a fifth of them held out as a
            test set; another `dataset_name` for the Hub's; `data_dir` for a folder with a folder of images for each
            label (or for each split, with such folders inside), or a `DatasetDict` saved to disk; `source_column` and
            `target_column` for other names than "image" and "label".

    Returns:
        the splits "train", "validation" and any test sets, with the columns "image" (a PIL image) and "label" (a
        number), and the labels' names in the order of their numbers. Without a validation split, a tenth of the
        training images is held out.

    Raises:
        ValueError: the data can't be read, has other columns, or a package is missing.
    """
    if (args.data_dir is None) == (args.dataset_name is None):
        given = "both are given" if args.data_dir is not None else "neither is given"
        raise ValueError(f'give one of data_dir and dataset_name ("digits" needs no files): {given}')
    _require("PIL", "pillow")
    where = f"data_dir={args.data_dir!r}" if args.data_dir is not None else f"dataset_name={args.dataset_name!r}"
    if args.dataset_name == DIGITS:
        loaded = _digits()
    else:
        folder = Path(str(args.data_dir)).expanduser()
        is_saved = (folder / "dataset_dict.json").is_file()
        try:
            if args.dataset_name is not None:
                loaded = load_dataset(args.dataset_name, args.dataset_config_name, cache_dir=args.cache_dir)
            elif is_saved:
                loaded = load_from_disk(str(folder))
            else:
                loaded = load_dataset(
                    "imagefolder", data_dir=str(folder), data_files=_files_of(folder), cache_dir=args.cache_dir
                )
        except Exception as error:  # a wrong name, no network, damaged files: each its own type
            if args.data_dir is not None and not is_saved and not _has_images(folder):
                what = "no images there (.png, .jpg ...)" if folder.is_dir() else "no such folder"
                remedy = "it wants a folder of images for each label, such as cat/1.png"
                raise ValueError(f"{where}: {what}: {remedy}") from error
            raise ValueError(f"{where}: cannot be loaded: {root_cause(error)}") from error
    splits = _choose_splits(loaded, where, args)
    feature = splits["train"].features["label"]
    labels = splits["train"]["label"][:]
    if isinstance(feature, ClassLabel):
        names = feature.names
        learnt = {names[label] for label in labels if label is not None and label >= 0}
    else:
        learnt = {str(label) for label in labels}
        names = sorted(learnt)
    splits = {name: _with_labels(split, names, learnt, f"{where}, {name}") for name, split in splits.items()}
    if "validation" not in splits:
        count = max(len(names), int(VALIDATION_FRACTION * len(splits["train"])))
        try:
            parts = splits["train"].train_test_split(count, seed=HELD_OUT_SEED, stratify_by_column="label")
        except ValueError as error:  # a label of one image, or fewer images than labels
            raise ValueError(
                f"{where}: no validation split, and too few images of a label to hold one out: give one"
            ) from error
        splits |= {"train": parts["train"], "validation": parts["test"]}
    for name, split in splits.items():
        most = args.max_train_samples if name == "train" else args.max_eval_samples
        if most is not None and most < len(split):
            some = np.random.default_rng(HELD_OUT_SEED).permutation(len(split))[:most]  # a folder's are by label
            splits[name] = split.select(np.sort(some))
    return DatasetDict(splits), list(names)


def _files_of(folder: Path) -> dict[str, str] | None:
    """
    Each split's files: those in the folder of its name, or all. Left to itself the library takes a test-tube.png, or a
    class that is called so, for a test set.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    validation = next((name for name in VALIDATION_NAMES if name in names), None)
    splits = [name for name in names if name == "train" or name == validation or TEST_NAME.fullmatch(name)]
    if "train" in splits and any(path.is_dir() for path in (folder / "train").iterdir()):
        return {name: f"{name}/**" for name in splits}
    has_archives = any(path.suffix.lower() in ARCHIVES for path in folder.rglob("*"))
    return None if has_archives else {"train": "**"}  # archives are named by their splits


def _has_images(folder: Path) -> bool:
    """Whether there is an image, or an archive that may hold some."""
    endings = {*ImageFolder.EXTENSIONS, *ARCHIVES}
    return any(endings & {*map(str.lower, path.suffixes)} for path in folder.rglob("*"))


def image_processor(size: int, num_channels: int) -> Any:
    """The library's processor for a model of `size` × `size` pixels: resized, and scaled to -1 ... 1."""
    _require("PIL", "pillow")
    from transformers import ViTImageProcessorPil

    middle = [0.5] * num_channels
    return ViTImageProcessorPil(size={"height": size, "width": size}, image_mean=middle, image_std=middle)


def _choose_splits(loaded: Any, where: str, args: DataArguments) -> dict[str, Dataset]:
    if "train" not in loaded:
        raise ValueError(f"{where}: no split 'train': there are {', '.join(loaded)}")
    chosen = {"train": loaded["train"]}
    validation = next((name for name in VALIDATION_NAMES if name in loaded), None)
    if validation:
        chosen["validation"] = loaded[validation]
    chosen |= {name: split for name, split in loaded.items() if TEST_NAME.fullmatch(name)}
    for name in chosen.keys() - {"train", "validation"}:
        if has_no_labels(chosen[name], args.target_column or "label"):
            logger.warning("%s: %s is left out: it has no labels", where, name)
            del chosen[name]
    names = {args.source_column or "image": "image", args.target_column or "label": "label"}
    for name, split in chosen.items():
        for column, option in zip(names, ("source_column", "target_column"), strict=True):
            if column not in split.column_names:
                there = ", ".join(split.column_names)
                raise ValueError(f"{where}, {name}: no column {column}: there are {there}: give {option}")
        split = split.select_columns(list(names))
        split = split.rename_columns({old: new for old, new in names.items() if old != new})
        try:
            chosen[name] = split.cast_column("image", Image())
        except (TypeError, ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{where}, {name}: column image holds no images: {root_cause(error)}") from error
    return chosen


def _with_labels(split: Dataset, names: list[str], learnt: set[str], where: str) -> Dataset:
    """The split with its labels as numbers of `names`, whatever they were; `learnt` are those in the training set."""
    feature, numbers = split.features["label"], {name: number for number, name in enumerate(names)}
    labels = []
    for row, label in enumerate(split["label"][:], start=1):
        if label is None or (isinstance(feature, ClassLabel) and label < 0):
            raise ValueError(f"{where}, row {row}: there is no label: fill it in or take the row out")
        text = feature.names[label] if isinstance(feature, ClassLabel) else str(label)
        if text not in learnt:
            raise ValueError(f"{where}, row {row}: the label {text!r} is none of the training set's")
        labels.append(numbers[text])
    return split.remove_columns("label").add_column("label", labels).cast_column("label", ClassLabel(names=names))


def _digits() -> DatasetDict:
    _require("sklearn", "scikit-learn")
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)  # (1797, 8, 8), from 0 ... 16
    data = Dataset.from_dict({"image": list(pixels), "label": digits.target.tolist()})
    data = data.cast_column("image", Image()).cast_column("label", ClassLabel(names=list("0123456789")))
    return data.train_test_split(TEST_FRACTION, seed=HELD_OUT_SEED, stratify_by_column="label")


def _require(module: str, package: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise ValueError(f"images need {package}: pip install 'vanilla-transformer[images]'")


__all__ = ["DIGITS", "image_processor", "load_images"]
