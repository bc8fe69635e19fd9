"""`vanilla doctor`: nothing on a sound recipe, and each planted fault found."""

import importlib.util
import json
import re

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import modeling_vanilla.modeling_vanilla as module
from modeling_vanilla import VanillaForConditionalGeneration as Model
from modeling_vanilla.heads import VanillaForCausalLM
from modeling_vanilla.scripts import doctor, train
from modeling_vanilla.training import load_recipe
from modeling_vanilla.training.doctor import batch, cost, diagnose, diagnosis
from modeling_vanilla.training.jobs.language_model import LineCollator
from modeling_vanilla.training.jobs.translation import Translation
from modeling_vanilla.training.schedule import noam_peak
from tests.fixtures import corpus, train_words

from .test_jobs import CLASSIFIER, write_questions
from .test_jobs import words as train_words_without_none

SHIFT = Model.prepare_decoder_input_ids_from_labels


def write(folder, train=None, test=None):
    folder.mkdir(parents=True)
    splits = {"train": train or corpus(0, 2700, 14), "val": corpus(1, 2700, 141), "test": test or corpus(2, 2700, 182)}
    for split, pairs in splits.items():
        for side, lang in enumerate(("en", "de")):
            lines = [pair[side] if isinstance(pair[side], bytes) else pair[side].encode() for pair in pairs]
            (folder / f"{split}.{lang}").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def findings(tmp_path, train=None, test=None, **changes) -> list[tuple[str, str]]:
    words = train_words(write(tmp_path / "data", train, test), tmp_path / "out", **{"dropout": 0.1} | changes)
    found = diagnose(load_recipe(None, words), say=lambda line: None)
    assert not (tmp_path / "out").exists()
    return [(finding.level, finding.text) for finding in found]


def test_a_sound_recipe_has_no_fault(tmp_path):
    found = findings(tmp_path)
    assert {level for level, _ in found} == {"ok"}
    assert [text.split(":")[0] for _, text in found] == [
        "corpus", "batch", "masks", "overfitting", "rate", "cost", "memory",
    ]  # fmt: skip


def test_nothing_is_made_on_the_hub(tmp_path, monkeypatch):
    made: list = []
    monkeypatch.setattr("modeling_vanilla.training.paper.make_repository", lambda *args, **_: made.append(args))
    findings(tmp_path, push_to_hub="true", hub_model_id="me/en-de")
    assert not made


PAIRS = corpus(0, 2700, 14)
VARIED = [(" ".join([s] * (1 + n % 4)), " ".join([t] * (1 + n % 4))) for n, (s, t) in enumerate(PAIRS)]
CORPORA = {
    "pairs dropped: empty side": {"train": [(s, "" if n % 9 == 0 else t) for n, (s, t) in enumerate(PAIRS)]},
    "pairs dropped: invalid UTF-8": {"train": [(s, b"caf\xe9" if n % 9 == 0 else t) for n, (s, t) in enumerate(PAIRS)]},
    "pairs dropped: duplicate": {"train": PAIRS + PAIRS[:60]},
    "pairs dropped: over-long": {"train": [(s, (t + " ") * 60 if n % 9 == 0 else t) for n, (s, t) in enumerate(PAIRS)]},
    "pairs dropped: length ratio": {"train": [(s, "x" if n % 9 == 0 else t) for n, (s, t) in enumerate(PAIRS)]},
    "are copies of their sources": {"train": [(s, s if n % 3 == 0 else t) for n, (s, t) in enumerate(PAIRS)]},
    "may not translate each other": {
        "train": [(s, t) for (s, _), (_, t) in zip(VARIED, VARIED[1:] + VARIED[:1], strict=True)]
    },
    "of test are in the training set": {"test": PAIRS[:15]},
}


@pytest.mark.parametrize("message", CORPORA)
def test_a_fault_of_the_corpus_is_found(tmp_path, message):
    found = findings(tmp_path, **CORPORA[message], max_length_ratio=4, max_length=200)
    faults = [(level, text) for level, text in found if level != "ok"]
    assert any(message in text for _, text in faults), found
    assert all(";" in text for _, text in faults)  # with a remedy


def patched(monkeypatch, where, name, value):
    monkeypatch.setattr(where, name, value)


def sees_all(config, hidden_states, *_, **__):
    return hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], hidden_states.shape[1])


FAULTS = {
    "need only copy": lambda m: patched(m, Model, SHIFT.__name__, lambda self, labels: labels.clamp(min=0)),
    "doesn't begin with the start token": lambda m: patched(
        m, Model, SHIFT.__name__, lambda self, labels: SHIFT(self, labels).roll(-2, 1)
    ),
    "isn't the labels shifted by one": lambda m: patched(
        m, Model, SHIFT.__name__, lambda self, labels: SHIFT(self, SHIFT(self, labels))
    ),
    "the causal mask doesn't hold": lambda m: patched(m, module, "create_causal_mask", sees_all),
    "the padding mask doesn't hold": lambda m: patched(m, module, "mask_of_keys", lambda *_: None),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_of_the_model_is_found(tmp_path, monkeypatch, message):
    FAULTS[message](monkeypatch)
    found = findings(tmp_path, attn_implementation="eager")
    assert any(level == "error" and message in text for level, text in found), found


def test_what_does_not_learn_is_found(tmp_path, monkeypatch):
    build = Translation.build

    def frozen(self):
        model = build(self)
        model.requires_grad_(False)
        model.model.decoder.layer_norm.requires_grad_(True)
        model.model.decoder.layers[0].fc2.bias.requires_grad_(True)
        return model

    monkeypatch.setattr(Translation, "build", frozen)
    found = findings(tmp_path)
    assert any(level == "error" and text.startswith("overfitting") for level, text in found), found


@pytest.mark.parametrize(("rate", "level", "message"), [(30.0, "error", "will diverge"), (1e-6, "warning", "slow")])
def test_a_rate_out_of_range_is_found(tmp_path, rate, level, message):
    found = findings(tmp_path, learning_rate=rate)
    assert any(one == level and message in text for one, text in found), found


@pytest.fixture
def quick(monkeypatch):
    """For what doesn't depend on what is learnt."""
    monkeypatch.setattr(batch, "OVERFIT_STEPS", 2)
    monkeypatch.setattr(cost, "RATES", cost.RATES[:2])
    monkeypatch.setattr(cost, "TRIAL_SECONDS", 0)


def line(found: list[tuple[str, str]], check: str) -> str:
    (text,) = (text for _, text in found if text.startswith(f"{check}:"))
    return text


def updates(found: list[tuple[str, str]]) -> int:
    return int(re.search(r"([\d,]+) updates", line(found, "cost"))[1].replace(",", ""))


EPOCHS = {"max_steps": -1, "num_train_epochs": 10}


def test_the_epochs_of_a_cut_corpus_are_those_of_the_whole(tmp_path, monkeypatch, quick):
    train = [(source, "" if n == 3 else target) for n, (source, target) in enumerate(PAIRS)]
    whole = updates(findings(tmp_path / "whole", train, **EPOCHS))
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 100)
    found = findings(tmp_path / "cut", train, **EPOCHS)
    assert updates(found) == pytest.approx(whole, rel=0.1)
    assert any("kept 99 of 100 pairs" in text and "the first 100 of 193 examples" in text for _, text in found), found


@pytest.mark.parametrize(("size", "cut"), [(100, True), (193, False), (194, False)])
def test_a_cut_that_the_recipe_makes_itself_is_not_told(tmp_path, monkeypatch, quick, size, cut):
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", size)
    assert ("looked at" in str(findings(tmp_path / "all"))) is cut
    assert "looked at" not in str(findings(tmp_path / "some", max_train_samples=100))


def test_a_batch_is_learnt_by_heart_without_dropout(tiny_model, monkeypatch):
    students = []
    monkeypatch.setattr(batch, "_fit", lambda student, *_: (students.append(student), (1.0, 0.0))[1])
    settings = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5}
    ids = torch.tensor([[5, 6, 7, 2]])
    list(batch.check_overfitting(tiny_model(**settings), {"input_ids": ids, "labels": ids}))
    (student,) = students
    assert student.training
    first, second = (student(ids, labels=ids).loss for _ in range(2))
    assert torch.equal(first, second)


REFUSED = {
    "flash_attn": {"attn_implementation": "flash_attention_2"},
    "galore_torch": {"optim": "galore_adamw", "optim_target_modules": "all-linear"},
    "wandb": {"report_to": "wandb"},
}


@pytest.mark.parametrize("package", REFUSED)
def test_a_package_that_is_missing_is_told_as_training_tells_it(tmp_path, package, capsys):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    words = train_words(write(tmp_path / "data"), tmp_path / "out", **REFUSED[package])
    assert doctor.run(words) == train.run(words) == 2
    said = capsys.readouterr().err.splitlines()
    ours, theirs = (
        [text.split(" error: ")[1] for text in said if text.startswith(f"vanilla {verb}: error: ")]
        for verb in ("doctor", "train")
    )
    assert ours == theirs
    assert next(iter(REFUSED[package])) in ours[0]


def test_updates_are_tried_with_the_recipes_optimizer(tmp_path, monkeypatch, quick):
    made, make = [], cost.make_optimizer
    monkeypatch.setattr(cost, "make_optimizer", lambda *args: made.append(make(*args)) or made[-1])
    findings(tmp_path, optim="adafactor")
    assert {type(optimizer).__name__ for optimizer in made} == {"Adafactor"}
    assert made[-1].state  # it has made updates


def test_updates_are_tried_with_the_recipes_attention(tmp_path, monkeypatch, quick):
    """A kernel of half precision takes part in them alone."""
    calls = []

    def kernel(*args, **kwargs):
        calls.append(torch.is_grad_enabled())
        return sdpa_attention_forward(*args, **kwargs)

    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", lambda *_, **__: None)
    AttentionInterface.register("doctors_flash", kernel)
    AttentionMaskInterface.register("doctors_flash", sdpa_mask)
    found = findings(tmp_path, attn_implementation="doctors_flash")
    assert line(found, "masks").startswith("masks: neither")
    assert calls
    assert all(calls)


@pytest.mark.parametrize("changes", [{"warmup_steps": 0}, {"lr_scheduler_type": "constant"}], ids=str)
def test_a_rate_without_warm_up_is_not_compared_with_the_papers(tmp_path, quick, changes):
    found = findings(tmp_path, learning_rate=1e-5, **changes)
    assert ("ok", "rate: the recipe's peak is 1e-05; the loss doesn't leave up to 1") in found


def test_a_warm_up_in_shares_is_that_of_the_whole_run(tmp_path, monkeypatch, quick):
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 100)
    found = findings(tmp_path, warmup_steps=0.5, learning_rate=1e-3, **EPOCHS)
    assert f"warm-up {noam_peak(32, -(-updates(found) // 2)):.2g};" in line(found, "rate")


def test_a_warm_up_that_takes_the_whole_run_is_found(tmp_path, quick):
    found = findings(tmp_path, max_steps=5, warmup_steps=500, learning_rate=1e-3)
    (text,) = (text for level, text in found if level == "warning" and "warm-up of 500 updates" in text)
    assert "takes all of the run's 5: the rate gets to about 1e-05 of 0.001; lower warmup_steps" in text


def test_batches_are_counted_once(tmp_path, caplog):
    with caplog.at_level("INFO"):
        findings(tmp_path)
    assert caplog.text.count("batches of at most") == 1


def test_only_what_grows_with_the_batch_is_extrapolated(monkeypatch):
    memory = {"VmHWM": 900, "VmRSS": 600, "MemAvailable": 3_900}
    monkeypatch.setattr(cost, "_linux_memory", lambda: {name: value * 10**6 for name, value in memory.items()})
    cpu = torch.device("cpu")
    (found,) = cost._memory(cpu, 500 * 10**6, "max_tokens", 1_000)
    assert found.text == "memory: 0.9 GB of 4.5 at max_tokens 1,000; up to about 10,000 would fit"
    (found,) = cost._memory(cpu, 890 * 10**6, "max_tokens", 1_000)
    assert found.text == "memory: 0.9 GB of 4.5 at max_tokens 1,000"


# Other tasks

LINES = {"task": "language_modeling", "source_lang": None, "predict_with_generate": "false"}
LABELS = {"task": "text_classification", **CLASSIFIER}
IMAGES = {
    "task": "image_classification", "dataset_name": "digits", "data_dir": None, "source_lang": None,
    "target_lang": None, "max_tokens": None, "image_size": 8, "patch_size": 2, "vocab_size": None,
}  # fmt: skip


def of_task(tmp_path, settings, say=lambda line: None) -> list[tuple[str, str]]:
    if settings["task"] == "language_modeling":
        write(tmp_path / "data")
    elif settings["task"] == "text_classification":
        write_questions(tmp_path / "data")
    recipe = load_recipe(None, train_words_without_none(tmp_path / "data", tmp_path / "out", **settings))
    return [(finding.level, finding.text) for finding in diagnose(recipe, say)]


@pytest.mark.parametrize("settings", [LINES, LABELS, IMAGES], ids=lambda settings: settings["task"])
def test_a_sound_recipe_of_another_task_has_no_fault(tmp_path, settings):
    said: list[str] = []
    found = of_task(tmp_path, settings, said.append)
    assert {level for level, _ in found} == {"ok"}, found
    checks = ["corpus", "batch", "masks", "overfitting", "rate", "cost", "memory"]
    if settings is IMAGES:
        checks.remove("masks")  # images have no padding
    assert [text.split(":")[0] for _, text in found] == checks
    assert any(line.startswith("  label         ") for line in said)


def test_a_learned_table_that_ends_with_the_longest_text_is_sound(tmp_path, quick):
    table = {"max_length": 6, "position_encoding": "learned", "max_position_embeddings": 6}
    found = of_task(tmp_path, LABELS | table)
    assert line(found, "masks").startswith("masks: neither")


def test_labels_shifted_twice_are_found(tmp_path, monkeypatch):
    forward = VanillaForCausalLM.forward
    monkeypatch.setattr(
        VanillaForCausalLM,
        "forward",
        lambda self, *args, labels=None, **kwargs: forward(
            self, *args, labels=None if labels is None else labels.roll(-1, 1), **kwargs
        ),
    )
    found = of_task(tmp_path, LINES)
    assert any(level == "error" and "are the labels shifted once more?" in text for level, text in found), found


def test_labels_shifted_by_the_loader_are_found(tmp_path, monkeypatch):
    collate = LineCollator.__call__

    def shifted(self, batch):
        rows = collate(self, batch)
        return {**rows, "labels": rows["labels"].roll(-1, 1)}

    monkeypatch.setattr(LineCollator, "__call__", shifted)
    found = of_task(tmp_path, LINES)
    assert any(level == "error" and "isn't the labels shifted by one" in text for level, text in found), found


def test_padding_that_a_classifier_sees_is_found(tmp_path, monkeypatch):
    FAULTS["the padding mask doesn't hold"](monkeypatch)
    found = of_task(tmp_path, LABELS | {"attn_implementation": "eager"})
    assert any(level == "error" and "the padding mask doesn't hold" in text for level, text in found), found


@pytest.mark.parametrize(
    ("message", "train"),
    {
        "have the label 'a'; saying it always": [("a", f"Who is {n}?") for n in range(120)] + [("b", "Where?")] * 4,
        "1 training examples have the label 'b'": [("a", f"Who is {n}?") for n in range(60)] + [("b", "Where?")],
        "of test are in the training set": [("ab"[n % 2], f"What is {n}?") for n in range(60)],
    }.items(),
)
def test_a_fault_of_labelled_texts_is_found(tmp_path, message, train):
    found = of_labelled_texts(tmp_path, train)
    assert any(level != "ok" and message in text for level, text in found), found


def test_texts_that_are_cut_to_the_same_tokens_are_no_overlap(tmp_path, quick):
    found = of_labelled_texts(tmp_path, [("ab"[n % 2], f"What is {n}?") for n in range(20, 80)], max_length=4)
    assert not [text for _, text in found if "in the training set" in text]


def of_labelled_texts(tmp_path, train, **changes) -> list[tuple[str, str]]:
    (tmp_path / "data").mkdir()
    test = [("ab"[n % 2], f"What is {n}?") for n in range(20)]
    for split, rows in (("train", train), ("val", [("a", "Why?"), ("b", "Whom?")]), ("test", test)):
        lines = [json.dumps({"text": text, "label": label}) for label, text in rows]
        (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    settings = LABELS | {"vocab_size": 280} | changes
    recipe = load_recipe(None, train_words_without_none(tmp_path / "data", tmp_path / "out", **settings))
    return [(finding.level, finding.text) for finding in diagnose(recipe, lambda line: None)]


def test_the_command_says_and_ends_with_what_was_found(tmp_path, capsys, monkeypatch):
    words = train_words(write(tmp_path / "data"), tmp_path / "out")
    assert doctor.run(words) == 0
    output = capsys.readouterr().out
    assert "0 errors, 0 warnings" in output
    assert "  decoder input <s> " in output
    FAULTS["need only copy"](monkeypatch)
    assert doctor.run(words) == 1
    assert "this run can't succeed" in capsys.readouterr().out
