"""The output folder: whose it is, and what may be done there."""

import os

import pytest

from modeling_vanilla.training.output import last_checkpoint, open_output_dir

SETTINGS = {"model": "tiny", "seed": 1}


def checkpoint(folder, step, complete=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"")
    if complete:
        (path / "trainer_state.json").write_text("{}")
    return path


def test_a_new_folder_is_made_and_keeps_the_recipe(tmp_path):
    assert open_output_dir(tmp_path / "a" / "b", SETTINGS) is None
    assert "seed: 1" in (tmp_path / "a" / "b" / "recipe.yaml").read_text()


def test_the_same_run_goes_on_from_its_newest_whole_checkpoint(tmp_path):
    open_output_dir(tmp_path, SETTINGS)
    for step in (5, 10):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 15, complete=False)
    assert open_output_dir(tmp_path, SETTINGS) == tmp_path / "checkpoint-10"


def test_the_newest_is_the_one_of_most_steps_not_of_the_alphabet(tmp_path):
    for step in (90, 1000, 200):
        checkpoint(tmp_path, step)
    assert last_checkpoint(tmp_path).name == "checkpoint-1000"


def test_a_run_without_a_checkpoint_starts_anew(tmp_path):
    open_output_dir(tmp_path, SETTINGS)
    assert open_output_dir(tmp_path, SETTINGS) is None


def test_a_run_with_other_settings_is_refused_with_the_differences(tmp_path):
    open_output_dir(tmp_path, SETTINGS)
    with pytest.raises(ValueError, match=r"max_steps was None, is 3; seed was 1, is 2.*--overwrite_output_dir"):
        open_output_dir(tmp_path, {**SETTINGS, "seed": 2, "max_steps": 3})


@pytest.mark.parametrize("file", ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_a_folder_with_a_finished_model_is_refused(tmp_path, file):
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds a finished model.*--output_dir"):
        open_output_dir(tmp_path, SETTINGS)


def test_checkpoints_of_an_unknown_run_are_refused(tmp_path):
    checkpoint(tmp_path, 5)
    with pytest.raises(ValueError, match="checkpoints of a run without a recipe"):
        open_output_dir(tmp_path, SETTINGS)


def test_overwriting_removes_the_run_and_nothing_else(tmp_path):
    open_output_dir(tmp_path, SETTINGS)
    checkpoint(tmp_path, 5)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "notes.txt"):
        (tmp_path / name).write_text("")
    assert open_output_dir(tmp_path, {"seed": 9}, overwrite=True) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "recipe.yaml"]


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
