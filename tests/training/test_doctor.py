"""`vanilla doctor`: nothing on a sound recipe, and each planted fault found."""

import json

import pytest

import modeling_vanilla.modeling_vanilla as module
from modeling_vanilla import VanillaForConditionalGeneration as Model
from modeling_vanilla.heads import VanillaForCausalLM
from modeling_vanilla.scripts import doctor
from modeling_vanilla.training import load_recipe
from modeling_vanilla.training.doctor import diagnose
from modeling_vanilla.training.jobs.language_model import LineCollator
from modeling_vanilla.training.jobs.translation import Translation
from tests.fixtures import corpus, train_words

from .test_jobs import CLASSIFIER, write_questions
from .test_jobs import words as train_words_without_none

SHIFT = Model.prepare_decoder_input_ids_from_labels


def write(folder, train=None, test=None):
    folder.mkdir()
    splits = {"train": train or corpus(0, 2700, 14), "val": corpus(1, 2700, 141), "test": test or corpus(2, 2700, 182)}
    for split, pairs in splits.items():
        for side, lang in enumerate(("en", "de")):
            lines = [pair[side] if isinstance(pair[side], bytes) else pair[side].encode() for pair in pairs]
            (folder / f"{split}.{lang}").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def findings(tmp_path, train=None, test=None, **changes) -> list[tuple[str, str]]:
    words = train_words(write(tmp_path / "data", train, test), tmp_path / "out", dropout=0.1, **changes)
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
    (tmp_path / "data").mkdir()
    test = [("ab"[n % 2], f"What is {n}?") for n in range(20)]
    for split, rows in (("train", train), ("val", [("a", "Why?"), ("b", "Whom?")]), ("test", test)):
        lines = [json.dumps({"text": text, "label": label}) for label, text in rows]
        (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    settings = LABELS | {"vocab_size": 280}
    recipe = load_recipe(None, train_words_without_none(tmp_path / "data", tmp_path / "out", **settings))
    found = [(finding.level, finding.text) for finding in diagnose(recipe, lambda line: None)]
    assert any(level != "ok" and message in text for level, text in found), found


def test_the_command_says_and_ends_with_what_was_found(tmp_path, capsys, monkeypatch):
    words = train_words(write(tmp_path / "data"), tmp_path / "out")
    assert doctor.run(words) == 0
    output = capsys.readouterr().out
    assert "0 errors, 0 warnings" in output
    assert "  decoder input <s> " in output
    FAULTS["need only copy"](monkeypatch)
    assert doctor.run(words) == 1
    assert "this run can't succeed" in capsys.readouterr().out
