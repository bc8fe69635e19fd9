"""The output folder: whose it is, and what may be done there."""

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from modeling_vanilla.training.checkpoints import ASIDE, last_checkpoint, seal
from modeling_vanilla.training.output import Begun, give_back, open_output_dir, unless_begun

SETTINGS = {"model": "tiny", "seed": 1}


def begin(folder, settings, **options) -> None:
    """A run that has begun."""
    open_output_dir(folder, settings, **options)
    state = SimpleNamespace(is_world_process_zero=True)
    Begun().on_train_begin(SimpleNamespace(output_dir=str(folder)), state, None)


def checkpoint(folder, step, complete=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"")
    if complete:
        (path / "trainer_state.json").write_text("{}")
        seal(path)
    return path


def test_a_new_folder_is_made_and_keeps_the_recipe(tmp_path):
    assert open_output_dir(tmp_path / "a" / "b", SETTINGS) is None
    assert "seed: 1" in (tmp_path / "a" / "b" / "recipe.yaml").read_text()


def test_the_same_run_goes_on_from_its_newest_whole_checkpoint(tmp_path):
    begin(tmp_path, SETTINGS)
    for step in (5, 10):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 15, complete=False)
    assert open_output_dir(tmp_path, SETTINGS) == tmp_path / "checkpoint-10"


def test_the_newest_is_the_one_of_most_steps_not_of_the_alphabet(tmp_path):
    for step in (90, 1000, 200):
        checkpoint(tmp_path, step)
    assert last_checkpoint(tmp_path).name == "checkpoint-1000"


@pytest.mark.parametrize("settings", [SETTINGS, {**SETTINGS, "seed": 2}])
def test_a_run_that_never_saved_starts_anew(tmp_path, settings):
    """After a mistake in the data, say: whatever the settings are now, and with nothing that it left."""
    begin(tmp_path, SETTINGS)
    checkpoint(tmp_path / ASIDE, 5, complete=False)
    (tmp_path / "tokenizer.json").write_text("")
    begin(tmp_path, settings)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    assert f"seed: {settings['seed']}" in (tmp_path / "recipe.yaml").read_text()


def test_a_run_whose_checkpoints_are_all_broken_is_not_started_anew_by_surprise(tmp_path):
    begin(tmp_path, SETTINGS)
    checkpoint(tmp_path, 5, complete=False)
    (checkpoint(tmp_path, 10) / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"checkpoint-5: it has no manifest.*checkpoint-10: .* has 1 byte"):
        open_output_dir(tmp_path, SETTINGS)
    begin(tmp_path, SETTINGS, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_changed_settings_are_allowed_when_said_so(tmp_path, caplog):
    begin(tmp_path, SETTINGS)
    checkpoint(tmp_path, 5)
    changed = {**SETTINGS, "max_steps": 20}
    assert open_output_dir(tmp_path, changed, allow_changes=True) == tmp_path / "checkpoint-5"
    assert "max_steps was None, is 20" in caplog.text
    assert open_output_dir(tmp_path, changed) == tmp_path / "checkpoint-5"  # they are the run's now


def test_a_run_stopped_while_it_translated_the_test_sets_goes_on(tmp_path):
    begin(tmp_path, SETTINGS)
    checkpoint(tmp_path, 5)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert open_output_dir(tmp_path, SETTINGS) == tmp_path / "checkpoint-5"
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="holds a finished model"):
        open_output_dir(tmp_path, SETTINGS)


def test_the_folder_may_be_spelled_otherwise(tmp_path):
    begin(tmp_path, {**SETTINGS, "output_dir": "a"})
    checkpoint(tmp_path, 5)
    assert open_output_dir(tmp_path, {**SETTINGS, "output_dir": "./a/"}) == tmp_path / "checkpoint-5"


def test_a_run_with_other_settings_is_refused_with_the_differences(tmp_path):
    begin(tmp_path, SETTINGS)
    checkpoint(tmp_path, 5)
    with pytest.raises(ValueError, match=r"max_steps was None, is 3; seed was 1, is 2.*--overwrite_output_dir"):
        open_output_dir(tmp_path, {**SETTINGS, "seed": 2, "max_steps": 3})


@pytest.mark.parametrize("file", ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_a_folder_with_a_finished_model_is_refused(tmp_path, file):
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds a finished model.*--output_dir"):
        open_output_dir(tmp_path, SETTINGS)


def test_checkpoints_of_an_unknown_run_are_refused(tmp_path):
    checkpoint(tmp_path, 5)
    with pytest.raises(ValueError, match="holds checkpoint-5:"):
        open_output_dir(tmp_path, SETTINGS)


def test_a_folder_whose_files_the_model_would_replace_is_refused(tmp_path):
    for name in ("README.md", "tokenizer_config.json", "notes.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=r"holds README.md, tokenizer_config.json: .*--overwrite_output_dir"):
        open_output_dir(tmp_path, SETTINGS)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_folder_with_other_files_is_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert open_output_dir(tmp_path, SETTINGS) is None


def test_overwriting_removes_the_run_and_nothing_else(tmp_path):
    begin(tmp_path, SETTINGS)
    checkpoint(tmp_path, 5)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "notes.txt"):
        (tmp_path / name).write_text("")
    begin(tmp_path, {"seed": 9}, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "recipe.yaml"]


def test_overwriting_still_goes_on_with_the_same_unfinished_run(tmp_path):
    """So that a command with the option, interrupted and repeated, doesn't lose what it had."""
    begin(tmp_path, SETTINGS, overwrite=True)
    checkpoint(tmp_path, 5)
    assert open_output_dir(tmp_path, SETTINGS, overwrite=True) == tmp_path / "checkpoint-5"


def test_what_a_run_replaces_is_given_back_when_it_never_begins(tmp_path):
    files = {"model.safetensors": "weights", "tokenizer.json": "old", "recipe.yaml": "seed: 3", "notes.txt": "mine"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "translations").mkdir()

    def fail():
        with unless_begun(tmp_path):
            (tmp_path / "tokenizer.json").write_text("new")
            raise KeyboardInterrupt

    open_output_dir(tmp_path, SETTINGS, overwrite=True)
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == files
    assert (tmp_path / "translations").is_dir()


def test_what_a_run_replaces_is_given_back_when_it_is_killed_before_it_begins(tmp_path):
    (tmp_path / "model.safetensors").write_text("weights")
    open_output_dir(tmp_path, SETTINGS, overwrite=True)
    with pytest.raises(ValueError, match="holds a finished model"):
        open_output_dir(tmp_path, SETTINGS)


@pytest.mark.parametrize("call", range(6))
def test_a_kill_while_files_are_put_aside_or_given_back_costs_none(tmp_path, monkeypatch, call):
    """Three files and their folder are moved there, and then back: killed at each move."""
    files = ("config.json", "model.safetensors", "tokenizer.json")
    for name in files:
        (tmp_path / name).write_text(name)
    calls, rename = [], Path.rename

    def killed(self, target):
        calls.append(self)
        if len(calls) == call + 1:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    with suppress(KeyboardInterrupt):
        open_output_dir(tmp_path, SETTINGS, overwrite=True)
        give_back(tmp_path)
    assert len(calls) == call + 1
    monkeypatch.setattr(Path, "rename", rename)
    give_back(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: name for name in files}


def test_a_run_that_has_begun_gives_nothing_back(tmp_path):
    (tmp_path / "model.safetensors").write_text("weights")
    begin(tmp_path, SETTINGS, overwrite=True)
    with pytest.raises(ValueError, match="later"), unless_begun(tmp_path):
        raise ValueError("later")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_recipe_of_ones_own_is_no_run(tmp_path):
    files = ("README.md", "recipe.yaml", "tokenizer.json")
    for name in files:
        (tmp_path / name).write_text("seed: 1")
    with pytest.raises(ValueError, match=r"holds README.md, recipe.yaml, tokenizer.json: .*--overwrite_output_dir"):
        open_output_dir(tmp_path, SETTINGS)
    assert all((tmp_path / name).read_text() == "seed: 1" for name in files)


def test_what_is_put_beside_a_run_that_never_saved_is_refused(tmp_path):
    begin(tmp_path, SETTINGS)
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ValueError, match=r"holds README\.md: "):
        open_output_dir(tmp_path, SETTINGS)


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        open_output_dir(tmp_path / "out", SETTINGS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"can't be used as the output folder: Permission denied"):
        open_output_dir(tmp_path / "out", SETTINGS)


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"can't be used as the output folder: Not a directory"):
        open_output_dir(tmp_path / "file" / "out", SETTINGS)
