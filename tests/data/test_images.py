"""Which images are taken, and which labels there may be. (tests/training/test_jobs.py trains on them.)"""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from PIL import Image as Picture

from modeling_vanilla.data import DataArguments
from modeling_vanilla.data.images import load_images


def load(folder, **options):
    return load_images(DataArguments(task="image_classification", data_dir=str(folder), **options))


def draw(file, value: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Picture.fromarray(np.full((2, 2), value, np.uint8)).save(file)


def test_names_that_sound_like_splits_are_names(tmp_path):
    for label in ("bird", "test tube"):
        for number, name in enumerate(("1", "train_2", "test-3", "val 4", *map(str, range(5, 30)))):
            draw(tmp_path / "data" / label / f"{name}.png", number)
    data, names = load(tmp_path / "data", cache_dir=str(tmp_path / "cache"))
    assert names == ["bird", "test tube"]
    assert sum(data.num_rows.values()) == 58
    assert set(data) == {"train", "validation"}


def test_a_class_may_be_called_train(tmp_path):
    for label in ("car", "train"):
        for number in range(12):
            draw(tmp_path / "data" / label / f"{number}.png", number)
    assert load(tmp_path / "data", cache_dir=str(tmp_path / "cache"))[1] == ["car", "train"]


def test_a_sample_of_a_folder_has_more_than_its_first_label(tmp_path):
    for split in ("train", "validation"):
        for label in ("bird", "cat"):
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for number in range(10):
                picture = Picture.fromarray(np.full((2, 2), number, np.uint8))
                picture.save(tmp_path / "data" / split / label / f"{number}.png")
    limits = {"max_train_samples": 8, "max_eval_samples": 7, "cache_dir": str(tmp_path / "cache")}
    data, names = load(tmp_path / "data", **limits)
    assert data.num_rows == {"train": 8, "validation": 7}
    assert names == ["bird", "cat"]
    assert set(data["train"]["label"]) == set(data["validation"]["label"]) == {0, 1}
    assert load(tmp_path / "data", **limits)[0]["train"]["label"][:] == data["train"]["label"][:]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("data/train.en", "no images there .*it wants a folder of images for each label, such as cat/1.png$"),
        ("data/cat/1.txt", "no images there"),
        ("data/cat/images.tar.gz", "cannot be loaded"),  # which may hold some
        ("other/1.png", "no such folder: "),
    ],
)
def test_a_folder_without_images_is_named(tmp_path, file, message):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("text\n")
    with pytest.raises(ValueError, match=rf"data_dir='.*data': {message}"):
        load(tmp_path / "data", cache_dir=str(tmp_path / "cache"))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_label_that_training_never_shows_is_refused(tmp_path, split):
    def images(labels):
        pictures = [Picture.new("L", (2, 2))] * len(labels)
        features = Features({"image": Image(), "label": ClassLabel(names=["bird", "cat", "dog"])})
        return Dataset.from_dict({"image": pictures, "label": labels}, features=features)

    DatasetDict({"train": images([0, 1] * 20), split: images([1, 2])}).save_to_disk(tmp_path / "data")
    with pytest.raises(ValueError, match=f"{split}, row 2: the label 'dog' is none of the training set's"):
        load(tmp_path / "data")
