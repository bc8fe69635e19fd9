"""Checkpoints whole or absent: what a fault in writing or on the disk leaves, and what a run makes of it."""

import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modeling_vanilla.scripts import train
from modeling_vanilla.training import VanillaTrainer
from modeling_vanilla.training.averaging import last_checkpoints
from modeling_vanilla.training.checkpoints import (
    ASIDE,
    checkpoints,
    fault_of,
    is_due,
    last_checkpoint,
    remove,
    seal,
)
from modeling_vanilla.training.interruption import TrainingInterrupted
from modeling_vanilla.training.run import _weights_of
from tests.fixtures import train_words, write_corpus

from .conftest import make_model, make_pairs
from .test_trainer import arguments


def sealed(folder):
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    (folder / "trainer_state.json").write_text("{}")
    (folder / "inner").mkdir()
    (folder / "inner" / "more").write_bytes(b"more")
    seal(folder)
    return folder


def truncate(folder):
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(10)


def flip(folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[50] ^= 1
    (folder / "model.safetensors").write_bytes(data)


SPOILERS = {
    "has 10 bytes in the place of 700": truncate,
    "has changed since": flip,
    "inner/more is missing": lambda folder: (folder / "inner" / "more").unlink(),
    "has no manifest.json": lambda folder: (folder / "manifest.json").unlink(),
    "manifest.json can't be read": lambda folder: (folder / "manifest.json").write_text("[1"),
    "manifest.json can't be read ": lambda folder: (folder / "manifest.json").write_text('{"a": 3}'),
    "trainer_state.json is missing": lambda folder: (folder / "trainer_state.json").unlink(),
}


@pytest.mark.parametrize("fault", SPOILERS)
def test_a_broken_checkpoint_is_named_and_left_out(tmp_path, caplog, fault):
    for step in (5, 10):
        sealed(tmp_path / f"checkpoint-{step}")
    assert fault_of(tmp_path / "checkpoint-10") is None
    SPOILERS[fault](tmp_path / "checkpoint-10")
    assert fault.strip() in fault_of(tmp_path / "checkpoint-10")
    assert last_checkpoint(tmp_path).name == "checkpoint-5"
    assert f"checkpoint-10: left out: {fault_of(tmp_path / 'checkpoint-10')}" in caplog.text


def test_what_is_no_checkpoint_is_none(tmp_path):
    for name in ("checkpoint-x", "checkpoint-", ASIDE, "checkpoint-7.old"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-3").write_text("a file")
    assert checkpoints(tmp_path) == []


def test_a_half_removed_checkpoint_is_broken(tmp_path, monkeypatch):
    folder = sealed(tmp_path / "checkpoint-5")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed after the first step
    remove([folder])
    assert fault_of(folder)


# In training


def trainer(folder, **changes):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 8, **changes}
    return VanillaTrainer(
        make_model(), arguments(folder, **settings), train_dataset=make_pairs(), eval_dataset=make_pairs(9, seed=5)
    )


def score(one: VanillaTrainer, nll: dict[int, float]) -> None:
    """Has a trainer's evaluations find these losses at these updates."""

    def evaluate(*_, **__):
        metrics = {"eval_nll": nll[one.state.global_step]}
        one.log(dict(metrics))
        return metrics

    one.evaluate = evaluate


def names(folder) -> list[str]:
    return [path.name for path in checkpoints(folder)]


def test_every_checkpoint_of_a_run_is_sound(tmp_path):
    trainer(tmp_path).train()
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]
    assert [fault_of(path) for path in checkpoints(tmp_path)] == [None] * 4
    assert not (tmp_path / ASIDE).exists()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_newest_and_the_best_stay(tmp_path, limit):
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "metric_for_best_model": "nll",
        "load_best_model_at_end": True,
    }
    one = trainer(tmp_path, save_total_limit=limit, learning_rate=0.3, **settings)
    score(one, {2: 3.0, 4: 1.0, 6: 2.0, 8: 4.0})
    one.train()
    assert one.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert (
        names(tmp_path)
        == {
            1: ["checkpoint-4"],  # the library's rule for a limit of 1, at the end
            2: ["checkpoint-4", "checkpoint-8"],
            3: ["checkpoint-4", "checkpoint-6", "checkpoint-8"],
        }[limit]
    )
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    for name, weight in saved.items():
        assert torch.equal(one.model.state_dict()[name], weight)


SELDOM = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 4, "load_best_model_at_end": True}
LOSSES = {1: 3.0, 2: 2.9, 3: 2.7, 4: 2.8}  # the best is after an update that isn't saved


@pytest.mark.parametrize("limit", [None, 1])
def test_the_best_is_the_best_of_what_is_saved(tmp_path, limit):
    one = trainer(tmp_path, **SELDOM, save_total_limit=limit)
    score(one, LOSSES)
    one.train()
    assert one.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert _weights_of(one, []) == [4]


def test_what_an_interruption_wrote_is_never_the_best(tmp_path):
    """It goes when the next one is there, and an undisturbed run never has it."""
    interrupt(tmp_path, 3, LOSSES, **SELDOM)
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-3"]
    one = trainer(tmp_path, **SELDOM)
    score(one, LOSSES)
    one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert one.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4"]


def test_a_best_one_at_an_interruption_was_due(tmp_path):
    settings = {"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 1, "max_steps": 4}
    interrupt(tmp_path, 2, LOSSES, **settings)
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    assert all(map(is_due, checkpoints(tmp_path)))


def interrupt(folder, step: int, losses: dict[int, float] | None = None, **settings) -> None:
    one, last = trainer(folder, **settings), last_checkpoint(folder)
    if losses:
        score(one, losses)
    one.interruption.on_step_begin = lambda args, state, control, **_: setattr(
        one.interruption, "requested", state.global_step == step - 1
    )
    with pytest.raises(TrainingInterrupted):
        one.train(resume_from_checkpoint=str(last) if last else None)


@pytest.mark.parametrize("step", [4, 5])
def test_an_interrupted_run_ends_with_the_mean_of_the_undisturbed_ones_checkpoints(tmp_path, step):
    settings = {"save_total_limit": 3, "average_last": 3}
    interrupt(tmp_path, step, **settings)
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-5"][: step - 2]
    assert [is_due(path) for path in checkpoints(tmp_path)] == [True, True, False][: step - 2]
    interrupt(tmp_path, 7, **settings)  # and once more, from there
    one = trainer(tmp_path, **settings)
    one.train(resume_from_checkpoint=str(last_checkpoint(tmp_path)))
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]
    assert [path.name for path in last_checkpoints(tmp_path, 3)] == names(tmp_path)


def test_a_checkpoint_that_was_due_when_the_run_was_interrupted_counts(tmp_path):
    settings = {"save_strategy": "epoch", "num_train_epochs": 3, "max_steps": -1}
    probe = trainer(tmp_path / "probe", **settings)
    steps = len(probe.get_train_dataloader())
    interrupt(tmp_path, steps, **settings)
    (only,) = checkpoints(tmp_path)
    assert is_due(only)


def test_a_run_interrupted_at_an_epochs_end_has_logged_and_evaluated_it(tmp_path):
    settings = {
        "save_strategy": "epoch", "eval_strategy": "epoch", "logging_strategy": "epoch", "num_train_epochs": 3,
        "max_steps": -1, "keep_best": 3,
    }  # fmt: skip
    whole = trainer(tmp_path / "whole", **settings)
    whole.train()
    interrupt(tmp_path / "parts", 2 * len(whole.get_train_dataloader()), **settings)
    parts = trainer(tmp_path / "parts", **settings)
    parts.train(resume_from_checkpoint=str(last_checkpoint(tmp_path / "parts")))
    logs = [
        [(entry["step"], entry.get("nll"), entry.get("eval_nll")) for entry in one.state.log_history[:-1]]
        for one in (whole, parts)
    ]
    assert logs[0] == logs[1]
    assert names(tmp_path / "whole") == names(tmp_path / "parts")


def test_a_limit_below_0_is_none_as_in_the_library(tmp_path):
    trainer(tmp_path, save_total_limit=-1).train()
    assert len(names(tmp_path)) == 4


def fail_at(monkeypatch, where: str, error: Exception, call: int = 2) -> None:
    """Has a function of the trainer fail when it is called the `call`-th time."""
    original, calls = getattr(VanillaTrainer, where), []

    def failing(self, *args, **kwargs):
        calls.append(1)
        result = original(self, *args, **kwargs)
        if len(calls) == call:
            raise error
        return result

    monkeypatch.setattr(VanillaTrainer, where, failing)


FULL = OSError(errno.ENOSPC, "No space left on device")
FAULTS = [
    ("save_model", FULL, "No space left on device"),
    ("_save_optimizer_and_scheduler", RuntimeError("PytorchStreamWriter failed writing file data/1"), "failed writing"),
    ("_save_rng_state", PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
]


@pytest.mark.parametrize(("where", "error", "message"), FAULTS)
def test_a_fault_in_writing_ends_the_run_with_the_last_sound_checkpoint(tmp_path, monkeypatch, where, error, message):
    fail_at(monkeypatch, where, error)
    with pytest.raises(ValueError, match=rf"checkpoint-4: could not be written: .*{message}.*checkpoint-2 is the last"):
        trainer(tmp_path).train()
    assert names(tmp_path) == ["checkpoint-2"]
    assert fault_of(tmp_path / "checkpoint-2") is None
    assert not (tmp_path / ASIDE).exists()


def test_a_fault_in_writing_is_passed_over_when_told_so(tmp_path, monkeypatch, caplog):
    fail_at(monkeypatch, "save_model", FULL)
    one = trainer(tmp_path, on_save_error="continue", save_total_limit=2)
    one.train()
    assert "checkpoint-4: could not be written: No space left on device; checkpoint-2 is the last sound" in caplog.text
    assert names(tmp_path) == ["checkpoint-6", "checkpoint-8"]
    assert one.state.global_step == 8


def test_an_interrupted_run_that_could_not_save_does_not_say_that_it_did(tmp_path, monkeypatch):
    fail_at(monkeypatch, "save_model", FULL)
    one = trainer(tmp_path, on_save_error="continue")
    one.interruption.on_step_begin = lambda args, state, control, **_: setattr(
        one.interruption, "requested", state.global_step == 3
    )
    with pytest.raises(ValueError, match=r"checkpoint-4: could not be written.*checkpoint-2 is the last sound"):
        one.train()


def test_old_ones_stay_until_the_new_one_is_sound(tmp_path, monkeypatch):
    fail_at(monkeypatch, "save_model", FULL)
    with pytest.raises(ValueError, match="could not be written"):
        trainer(tmp_path, save_total_limit=1).train()
    assert names(tmp_path) == ["checkpoint-2"]


def test_a_run_goes_on_from_the_newest_sound_checkpoint(tmp_path):
    """Byte for byte as if the newest had never been: the last one is cut short, as by a full disk or a bad block."""
    data = write_corpus(tmp_path / "data")
    words = train_words(data, tmp_path / "whole", max_steps=30, save_strategy="steps", save_steps=10, dropout=0.1)
    assert train.run(words) == 0
    again = [word.replace("whole", "again") for word in words]
    assert train.run(again) == 0
    for path in [*(tmp_path / "again").glob("*.safetensors"), tmp_path / "again" / "results.json"]:
        path.unlink()
    shutil.rmtree(tmp_path / "again" / "checkpoint-30")
    truncate(tmp_path / "again" / "checkpoint-20")
    assert train.run(again) == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert json.loads((tmp_path / "again" / "results.json").read_text())["resumed_at"] == 10


@pytest.mark.parametrize("step", [4, 6, 8])
def test_patience_is_not_renewed_by_resuming(tmp_path, step):
    """The best is at update 2, and 3 evaluations without a better one end the run, wherever it was interrupted."""
    nll = {2: 1.0, 4: 2.0, 6: 2.0, 8: 2.0, 10: 0.5, 12: 0.4, 14: 0.3, 16: 0.2}
    settings = {"eval_strategy": "steps", "eval_steps": 2, "early_stopping_patience": 3, "max_steps": 16}

    def run(**resume):
        one = trainer(tmp_path, **settings)

        def evaluate(*_, **__):
            metrics = {"eval_nll": nll[one.state.global_step]}
            one.control = one.callback_handler.on_evaluate(one.args, one.state, one.control, metrics)
            return metrics

        one.evaluate = evaluate
        one.train(**resume)
        return one

    assert run().state.global_step == 8
    assert run(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}")).state.global_step == 8


def killed_run(words: list[str], kills: list[float]) -> int:
    """
    Repeats the command, killed so many seconds after its next checkpoint each time and at last left alone; how many
    kills hit it.
    """
    hits, folder = 0, Path(words[words.index("--output_dir") + 1])
    for seconds in (*kills, None):
        if (folder / "results.json").is_file():  # it had finished before it was killed
            return hits
        before = set(checkpoints(folder))
        process = subprocess.Popen(
            [sys.executable, "-m", "modeling_vanilla.scripts.train", *words],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        if seconds is None:
            error = process.communicate()[1].decode()
            assert process.returncode == 0, error
            return hits
        while not set(checkpoints(folder)) - before and process.poll() is None:
            time.sleep(0.02)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        hits += process.wait() == -signal.SIGKILL
        if process.returncode == 0:
            return hits
    return hits


def test_kill_9_at_any_moment_changes_nothing(tmp_path):
    """The small version; `pytest -m slow` has twenty kills."""
    check_kills(tmp_path, 2)


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path):
    check_kills(tmp_path, 20)


def check_kills(tmp_path, count: int) -> None:
    data = write_corpus(tmp_path / "data")
    # Saved so often that a kill is likely to meet a save; long enough for all of them.
    words = train_words(
        data, tmp_path / "whole", max_steps=40 + 30 * count, save_strategy="steps", save_steps=3, save_total_limit=2,
        dropout=0.1, bpe_dropout=0.1, eval_strategy="steps", eval_steps=20, predict_with_generate="false",
    )  # fmt: skip
    killed_run(words, [])
    moments = torch.rand(count, generator=torch.Generator().manual_seed(count))
    again = [word.replace("whole", "again") for word in words]
    assert killed_run(again, moments.tolist()) >= 1
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    histories = [json.loads((tmp_path / name / "results.json").read_text())["history"] for name in ("again", "whole")]
    for one, other in zip(*histories, strict=True):
        clocks = {key for key in one if key.endswith(("runtime", "per_second"))}
        assert {k: v for k, v in one.items() if k not in clocks} == {k: v for k, v in other.items() if k not in clocks}
