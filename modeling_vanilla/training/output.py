"""The output folder: what is in it, and whether a run may go on there."""

import shutil
from pathlib import Path
from typing import Any

import yaml

RECIPE = "recipe.yaml"
RESULTS = "results.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
# What a finished or begun run of ours leaves at the root, and `--overwrite_output_dir` removes.
OURS = (RECIPE, RESULTS, "README.md", "*config.json", "tokenizer*", "translations", "checkpoint-*", "runs", *WEIGHTS)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end (the trainer's state is its last file)."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def open_output_dir(folder: Path, settings: dict[str, Any], overwrite: bool = False) -> Path | None:
    """
    Makes the folder ready for a run.

    Args:
        folder: where the model will be.
        settings: the run's, as they are kept beside the model.
        overwrite: remove what an earlier run left there.

    Returns:
        the checkpoint to go on from, where the folder holds an unfinished run of the same settings that has one.

    Raises:
        ValueError: when the folder can't be written, holds a finished model, or a run with other settings.
    """
    remedy = "choose another --output_dir, or add --overwrite_output_dir to replace it"
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: is a file, not a folder: {remedy}")
        folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            _remove(folder)
        if any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
            raise ValueError(f"{folder}: holds a finished model: {remedy}")
        recipe = folder / RECIPE
        if recipe.is_file():
            before = yaml.safe_load(recipe.read_text(encoding="utf-8")) or {}
            differences = [
                f"{key} was {before.get(key)!r}, is {settings.get(key)!r}"
                for key in sorted(before.keys() | settings.keys())
                if before.get(key) != settings.get(key)
            ]
            if differences:
                raise ValueError(
                    f"{folder}: holds an unfinished run with other settings ({'; '.join(differences)}): {remedy}"
                )
            return last_checkpoint(folder)
        if any(folder.glob("checkpoint-*")):
            raise ValueError(f"{folder}: holds checkpoints of a run without a {RECIPE}: {remedy}")
        (folder / RECIPE).write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{folder}: can't be used as the output folder: {error.strerror}") from error
    return None


def _remove(folder: Path) -> None:
    for pattern in OURS:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


__all__ = ["RECIPE", "RESULTS", "last_checkpoint", "open_output_dir"]
