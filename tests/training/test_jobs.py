"""`vanilla train` for the other heads: classifiers of text and images, and a language model, from files to a folder."""

import json
import math

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Image
from PIL import Image as Picture
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from modeling_vanilla.data import DataArguments, load_corpus
from modeling_vanilla.data.images import load_images
from modeling_vanilla.heads import VanillaForImageClassification, VanillaForSequenceClassification
from modeling_vanilla.training import load_recipe, run
from modeling_vanilla.training.jobs import JOBS
from modeling_vanilla.training.jobs.classification import in_colours
from modeling_vanilla.training.jobs.language_model import LineCollator
from modeling_vanilla.training.paper import EpochLengthGroups
from tests.fixtures import corpus, train_words, write_corpus

CLASSIFIER = {
    "source_lang": None, "target_lang": None, "max_tokens": None, "max_steps": 60, "per_device_train_batch_size": 16,
    "learning_rate": 3e-3, "vocab_size": 310,
}  # fmt: skip


def words(data, output, **changes) -> list[str]:
    """The words of a run of seconds; None takes a setting away."""
    given = train_words(data, output, **changes)
    pairs = zip(given[::2], given[1::2], strict=True)
    return [word for name, value in pairs if value != "None" for word in (name, value)]


def write_questions(folder, labels=("place", "person")) -> None:
    """Questions whose first word decides the label."""
    folder.mkdir()
    for split, start in {"train": 0, "test": 1}.items():
        lines = []
        for i, (text, _) in enumerate(corpus(start, 2700, 20)):
            label, word = (labels[0], "Where") if i % 2 else (labels[1], "Who")
            lines.append(json.dumps({"text": f"{word} is {text[4:-1]}?", "label": label}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    root = tmp_path_factory.mktemp("questions")
    write_questions(root / "data")
    return run(load_recipe(None, words(root / "data", root / "out", task="text_classification", **CLASSIFIER)))


def test_a_text_classifier_learns_from_json_lines(questions):
    (result,) = questions.results
    assert (result["dataset"], result["name"]) == ("test", "accuracy")
    assert result["value"] > 95
    assert result["signature"].startswith("n:135|labels:2")


def test_its_figure_is_the_share_of_right_answers_of_the_saved_model(questions):
    classify = pipeline("text-classification", str(questions.folder))
    records = [json.loads(line) for line in (questions.folder.parent / "data" / "test.jsonl").read_text().splitlines()]
    said = [answer["label"] for answer in classify([record["text"] for record in records])]
    right = sum(label == record["label"] for label, record in zip(said, records, strict=True))
    assert questions.results[0]["value"] == pytest.approx(100 * right / len(records))
    assert said == (questions.folder / "predictions" / "test.txt").read_text().splitlines()


def test_its_folder_is_a_finished_model(questions):
    assert not [path for path in questions.folder.rglob("*") if path.suffix in (".bin", ".pt")]
    model, info = VanillaForSequenceClassification.from_pretrained(questions.folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.id2label == {0: "person", 1: "place"}
    card = (questions.folder / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "labels text" in card
    assert "accuracy" in card


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_a_resumed_classifier_equals_the_undisturbed_one(questions, tmp_path, strategy):
    """In the second epoch, whose order must not depend on what was drawn before."""

    def train(name: str, checkpoint=None):
        changes = {**CLASSIFIER, "max_steps": 20, "save_strategy": "steps", "save_steps": 14, "logging_steps": 1,
                   "train_sampling_strategy": strategy}  # fmt: skip
        data = questions.folder.parent / "data"
        recipe = load_recipe(None, words(data, tmp_path / name, task="text_classification", **changes))
        job = JOBS["text_classification"](recipe, tmp_path / name)
        torch.manual_seed(1)
        job.prepare()
        trainer = job.trainer(job.build())
        trainer.train(resume_from_checkpoint=checkpoint)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return losses, trainer.model.state_dict()

    losses, weights = train("whole")
    losses_again, weights_again = train("resumed", str(tmp_path / "whole" / "checkpoint-14"))
    assert len(losses) == 20
    assert losses_again == losses
    assert all(torch.equal(weight, weights_again[name]) for name, weight in weights.items())


def test_labels_may_be_numbers(tmp_path):
    write_questions(tmp_path / "data", labels=(1, 0))
    recipe = words(tmp_path / "data", tmp_path / "out", task="text_classification", **CLASSIFIER | {"max_steps": 1})
    run(load_recipe(None, recipe))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "0", "1": "1"}


def test_a_label_that_training_never_showed_is_refused_with_its_row(tmp_path):
    write_questions(tmp_path / "data")
    (tmp_path / "data" / "test.jsonl").write_text(
        '{"text": "Who is it?", "label": "person"}\n{"text": "What?", "label": "thing"}'
    )
    said = r"test, row 2: the label 'thing' is none of the training set's: person, place"
    with pytest.raises(ValueError, match=said):
        run(load_recipe(None, words(tmp_path / "data", tmp_path / "out", task="text_classification", **CLASSIFIER)))


def test_a_missing_label_is_refused_with_its_row(tmp_path):
    write_questions(tmp_path / "data")
    with open(tmp_path / "data" / "train.jsonl", "a") as file:
        file.write('\n{"text": "Who is it?", "label": null}')
    changes = CLASSIFIER | {"validation_prefix": "test"}
    with pytest.raises(ValueError, match=r"train\.jsonl:136: 'label' is missing"):
        run(load_recipe(None, words(tmp_path / "data", tmp_path / "out", task="text_classification", **changes)))


def test_long_texts_are_cut_and_counted(tmp_path, caplog):
    write_questions(tmp_path / "data")
    changes = CLASSIFIER | {"max_steps": 1, "max_length": 5}
    run(load_recipe(None, words(tmp_path / "data", tmp_path / "out", task="text_classification", **changes)))
    assert "test: 135 of 135 texts are cut to max_length=5 tokens" in caplog.text


@pytest.mark.parametrize(
    ("task", "key", "said"),
    [
        ("text_classification", "max_tokens", "per_device_train_batch_size"),
        ("translation", "per_device_train_batch_size", "max_tokens"),
    ],
)
def test_the_other_tasks_batch_size_is_refused(task, key, said):
    with pytest.raises(ValueError, match=f"{key!r} has no effect here: .*{said}"):
        load_recipe(None, ["--task", task, f"--{key}", "8"])


def test_a_tsv_files_header_is_no_example(tmp_path):
    (tmp_path / "data").mkdir()
    lines = [f"{'Where' if i % 2 else 'Who'} is {text}\t{'place' if i % 2 else 'person'}"
             for i, (text, _) in enumerate(corpus(0, 2700, 20))]  # fmt: skip
    (tmp_path / "data" / "train.tsv").write_text("text\tlabel\n" + "\n".join(lines), encoding="utf-8")
    run(load_recipe(None, words(tmp_path / "data", tmp_path / "out", task="text_classification", **CLASSIFIER)))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "person", "1": "place"}


def test_a_label_of_one_example_stays_in_training():
    records = [{"text": f"Who is {i}?", "label": "rare" if i == 7 else "common"} for i in range(40)]
    from modeling_vanilla.data.corpus import _hold_out

    pairs = Dataset.from_list([{"source": r["text"], "target": r["label"]} for r in records])
    train, held_out = _hold_out(pairs, "here", DataArguments(task="text_classification"))
    assert "rare" in train["target"]
    assert "rare" not in held_out["target"]


@pytest.mark.parametrize(("recipe", "words"), [("digits", ["--data_dir", "x"]), ("demo", ["--data_dir", "x"])])
def test_a_folder_on_the_command_line_wins_over_the_recipes_data_set(recipe, words):
    data = load_recipe(recipe, words).data
    assert (data.data_dir, data.dataset_name) == ("x", None)


def test_the_task_may_stand_on_the_command_line_and_its_batch_size_in_the_recipe(tmp_path):
    (tmp_path / "r.yaml").write_text("per_device_train_batch_size: 4\n")
    recipe = load_recipe(str(tmp_path / "r.yaml"), ["--task", "text_classification"])
    assert recipe.training.per_device_train_batch_size == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_position_embeddings": 7}, "max_position_embeddings=7: inputs may have 307 positions"),
        ({"max_position_embeddings": 7, "task": "language_modeling"}, "may have 257 positions"),
    ],
)
def test_a_learned_table_that_ends_too_soon_is_refused_before_training(tmp_path, changes, said):
    given = words(write_corpus(tmp_path / "data"), tmp_path / "out", position_encoding="learned", **changes)
    with pytest.raises(ValueError, match=said):
        run(load_recipe(None, given))


@pytest.mark.parametrize(("task", "split"), [("language_modeling", "test"), ("translation", "val")])
def test_a_scored_line_past_a_learned_table_is_refused_before_training(tmp_path, task, split):
    """Such lines are never left out, and the end of a long training is a bad place to learn that they don't fit."""
    data = write_corpus(tmp_path / "data")
    for lang in ("en", "de"):
        with (data / f"{split}.{lang}").open("a", encoding="utf-8") as file:
            file.write("a b c d " * 200 + "\n")
    changes = {"position_encoding": "learned", "max_position_embeddings": 400, "task": task}
    with pytest.raises(ValueError, match="max_position_embeddings=400: inputs may have"):
        run(load_recipe(None, words(data, tmp_path / "out", **changes)))


def test_a_translation_past_a_learned_table_is_refused_before_training(tmp_path):
    """A line that fits may have a translation that doesn't: of up to 50 tokens more."""
    data = write_corpus(tmp_path / "data")
    with (data / "val.en").open("a", encoding="utf-8") as english, (data / "val.de").open("a") as german:
        english.write("The big dog sees the red ball. " * 4 + "\n")
        german.write("Der Hund.\n")
    changes = {"position_encoding": "learned", "max_length": 20, "max_position_embeddings": 75}
    changes |= {"eval_strategy": "steps", "predict_with_generate": "true"}
    with pytest.raises(ValueError, match="max_position_embeddings=75: inputs may have 113 "):
        run(load_recipe(None, words(data, tmp_path / "out", **changes)))


def test_a_language_model_of_short_lines_shows_samples(tmp_path):
    changes = {"source_lang": None, "predict_with_generate": "false", "max_length": 4, "max_steps": 1}
    data = tmp_path / "data"
    data.mkdir()
    for split, count in (("train", 40), ("val", 5), ("test", 5)):
        (data / f"{split}.de").write_text("ab\n" * (count - 1) + "ab ab ab ab ab\n")
    changes |= {"drop_duplicates": "false", "vocab_size": 264}
    result = run(load_recipe(None, words(data, tmp_path / "out", task="language_modeling", **changes)))
    assert (tmp_path / "out" / "results.json").is_file()
    assert len(result.samples) == 5


def image_data(folder, split_validation: bool = True) -> None:
    """Images of 4 × 4: bright at the top, or at the bottom."""
    generator = np.random.default_rng(0)

    def split(count: int) -> Dataset:
        labels = generator.integers(0, 2, count)
        images = generator.integers(0, 80, (count, 4, 4))
        images[labels == 0, :2] += 150
        images[labels == 1, 2:] += 150
        data = Dataset.from_dict({"image": list(images.astype(np.uint8)), "label": labels.tolist()})
        return data.cast_column("image", Image()).cast_column("label", ClassLabel(names=["top", "bottom"]))

    splits = {"train": split(120), "test": split(40)} | ({"validation": split(20)} if split_validation else {})
    DatasetDict(splits).save_to_disk(folder)


@pytest.mark.parametrize("split_validation", [True, False])
def test_an_image_classifier_learns_where_it_is_bright(tmp_path, split_validation):
    image_data(tmp_path / "data", split_validation)
    changes = CLASSIFIER | {"image_size": 4, "patch_size": 2, "cache_dir": None, "vocab_size": None}
    result = run(load_recipe(None, words(tmp_path / "data", tmp_path / "out", task="image_classification", **changes)))
    assert result.results[0]["value"] > 95
    assert VanillaForImageClassification.from_pretrained(tmp_path / "out").config.image_size == 4
    image = DatasetDict.load_from_disk(tmp_path / "data")["test"][0]["image"]
    best = pipeline("image-classification", str(tmp_path / "out"))(image)[0]["label"]
    assert best == (tmp_path / "out" / "predictions" / "test.txt").read_text().splitlines()[0]


IMAGES = CLASSIFIER | {"image_size": 4, "patch_size": 2, "cache_dir": None, "vocab_size": None, "max_steps": 1}


def split_of(labels: list) -> Dataset:
    images = [np.full((4, 4), i, np.uint8) for i in range(len(labels))]
    return Dataset.from_dict({"image": images, "label": labels}).cast_column("image", Image())


def test_labels_in_words_mean_the_same_in_every_split(tmp_path):
    train = split_of(["bird", "cat", "dog"] * 10)
    DatasetDict(train=train, test=split_of(["dog", "cat"])).save_to_disk(tmp_path / "data")
    data, labels = load_images(DataArguments(task="image_classification", data_dir=str(tmp_path / "data")))
    assert labels == ["bird", "cat", "dog"]
    assert data["test"]["label"] == [2, 1]


@pytest.mark.parametrize(
    ("labels", "said"), [([None, 1], "test, row 1: there is no label"), ([0, 7], "test, row 2: the label '7' is none")]
)
def test_images_of_unknown_labels_are_refused_with_their_row(tmp_path, labels, said):
    DatasetDict(train=split_of([0, 1] * 20), test=split_of(labels)).save_to_disk(tmp_path / "data")
    with pytest.raises(ValueError, match=said):
        load_images(DataArguments(task="image_classification", data_dir=str(tmp_path / "data")))


def test_too_few_images_to_hold_any_out_are_refused_with_a_remedy(tmp_path):
    DatasetDict(train=split_of(["a", "b"])).save_to_disk(tmp_path / "data")
    with pytest.raises(ValueError, match="no validation split, and too few images"):
        load_images(DataArguments(task="image_classification", data_dir=str(tmp_path / "data")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_channels": 1}, "num_channels=1: images are read in three colours"),
        ({"position_encoding": "learned", "max_position_embeddings": 3}, "inputs may have 4 positions"),
        ({"train_prefix": "x"}, "'train_prefix' has no effect here"),
    ],
)
def test_mistakes_in_an_image_recipe_are_named_before_training(tmp_path, changes, said):
    image_data(tmp_path / "data")
    given = words(tmp_path / "data", tmp_path / "out", task="image_classification", **IMAGES | changes)
    with pytest.raises(ValueError, match=said):
        run(load_recipe(None, given))


@pytest.mark.parametrize(("mode", "value"), [("I;16", 3000), ("I", 70_000), ("F", 0.5)])
def test_an_image_that_would_be_spoiled_is_refused(mode, value):
    with pytest.raises(ValueError, match=f"mode {mode} has more than 8 bits"):
        in_colours(Picture.new(mode, (4, 4), value))
    assert in_colours(Picture.new("I", (4, 4), 200)).getpixel((0, 0)) == (200, 200, 200)


def test_images_without_labels_are_refused(tmp_path):
    data = Dataset.from_dict({"image": [np.zeros((4, 4), np.uint8)]}).cast_column("image", Image())
    DatasetDict(train=data).save_to_disk(tmp_path / "data")
    changes = IMAGES
    with pytest.raises(ValueError, match=r"train: no column label: there are image: give target_column"):
        run(load_recipe(None, words(tmp_path / "data", tmp_path / "out", task="image_classification", **changes)))


def test_the_digits_are_scikit_learns_with_a_fifth_held_out():
    data, labels = load_images(DataArguments(task="image_classification", dataset_name="digits"))
    assert labels == list("0123456789")
    assert (len(data["test"]), sum(map(len, data.values()))) == (360, 1797)
    assert np.asarray(data["test"][0]["image"]).shape == (8, 8)
    pixels = {split: {np.asarray(x["image"]).tobytes() for x in data[split]} for split in ("train", "test")}
    assert not pixels["train"] & pixels["test"]


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    root = tmp_path_factory.mktemp("language_model")
    changes = {"source_lang": None, "predict_with_generate": "false"}
    return run(load_recipe(None, words(write_corpus(root / "data"), root / "out", task="language_modeling", **changes)))


def test_a_language_model_learns_from_one_languages_lines(language_model):
    (result,) = language_model.results
    assert (result["dataset"], result["name"]) == ("test", "perplexity")
    assert result["value"] < 5  # of 340 tokens; the German sentences have five places to choose at
    assert len(language_model.samples) == 10


def test_its_perplexity_is_that_of_a_plain_loop(language_model):
    tokenizer = AutoTokenizer.from_pretrained(language_model.folder)
    model = AutoModelForCausalLM.from_pretrained(language_model.folder)
    total, count = 0.0, 0
    for line in (language_model.folder.parent / "data" / "test.de").read_text().splitlines():
        ids = [tokenizer.bos_token_id, *tokenizer(line)["input_ids"]]
        with torch.no_grad():
            log_probs = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        total -= sum(log_probs[t, token].item() for t, token in enumerate(ids[1:]))
        count += len(ids) - 1
    assert language_model.results[0]["value"] == pytest.approx(math.exp(total / count), rel=1e-4)


def test_the_built_in_corpus_gives_lines_of_its_target_language():
    data = load_corpus(DataArguments(task="language_modeling", dataset_name="builtin", target_lang="en"))
    assert data["test"][0]["source"] == data["test"][0]["target"]
    assert data["test"][0]["target"].isascii()


def test_lines_of_a_json_file_are_found_by_language(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"en": "a", "de": "b"}\n{"en": "c", "de": "d"}', encoding="utf-8")
    data = load_corpus(DataArguments(task="language_modeling", data_dir=str(tmp_path), target_lang="de"))
    assert {*data["train"]["source"], *data["validation"]["target"]} == {"b", "d"}


def test_a_sample_of_a_short_line_does_not_go_on_after_its_end(language_model):
    assert all(sample["target"].startswith(sample["source"]) for sample in language_model.samples)


def test_lines_are_predicted_from_the_start_token_to_the_end_token():
    batch = LineCollator(pad_token_id=0, start_token_id=1)(
        [{"input_ids": [5], "labels": [5, 6, 2]}, {"input_ids": [7], "labels": [7, 2]}]
    )
    assert batch["input_ids"].tolist() == [[1, 5, 6, 2], [1, 7, 2, 0]]
    assert batch["labels"].tolist() == [[-100, 5, 6, 2], [-100, 7, 2, -100]]


def test_groups_of_lengths_are_drawn_anew_in_each_epoch():
    groups = EpochLengthGroups(4, list(range(1, 41)), seed=3)
    orders = []
    for epoch in (0, 1, 0):
        groups.set_epoch(epoch)
        orders.append(list(groups))
    assert orders[0] == orders[2] != orders[1]
