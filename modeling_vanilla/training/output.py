"""The output folder: what is in it, and whether a run may go on there."""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainerCallback

from modeling_vanilla.interop.hub import TOKENIZER
from modeling_vanilla.training.checkpoints import ASIDE, checkpoints, fault_of, last_checkpoint

logger = logging.getLogger(__name__)

RECIPE = "recipe.yaml"
MARK = "# Written by vanilla train: the settings of the run in this folder.\n"
RESULTS = "results.json"
REPLACED = ".replaced"  # what was there before, until a run begins in its place ...
MOVING = ".replaced.moving"  # ... and on its way there, or back
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
# What a run leaves at the root: what may not be there before it, and what `--overwrite_output_dir` removes.
OURS = (
    RECIPE,
    RESULTS,
    "README.md",
    "training_curve.png",
    "*config.json",
    *TOKENIZER,
    "translations",
    "predictions",
    "checkpoint-*",
    ASIDE,
    "bad-updates",
    "runs",
    *WEIGHTS,
)
UNSAVED = (RECIPE, *TOKENIZER, "runs", "bad-updates", ASIDE)  # of a run that never saved


class ChangedCard(ValueError):
    """A card that somebody wrote into, or that was there before."""


def write_results(folder: Path, facts: dict[str, Any]) -> None:
    """Writes what is known of a finished run: all of it or nothing."""
    aside = folder / f".{RESULTS}"
    aside.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(folder / RESULTS)


def save_results(folder: Path, results: list[dict[str, Any]]) -> None:
    """
    Adds figures to those of a finished run, in the place of what had the same data set and name, and to its card,
    unless that was changed by hand. What is replaced by another figure is logged.

    Raises:
        ValueError: when the folder has no readable results.json, or can't be written.
    """
    with _facts_of(folder) as facts:
        for old, new in product(facts["results"], results):
            if _same_figure(old, new) and old["value"] != new["value"]:
                figures = f"{old['value']:.2f} before, {new['value']:.2f} now"
                logger.warning("%s: %s of %s is replaced: %s", folder / RESULTS, old["name"], old["dataset"], figures)
        kept = [old for old in facts["results"] if not any(_same_figure(old, new) for new in results)]
        facts["results"] = kept + results


def save_about(folder: Path, about: dict[str, str], output: Path | None = None) -> None:
    """
    Adds what only a person knows of a finished run to what is known of it, and writes its card anew.

    Args:
        about: `license`, `author`, `data_origin`, or some of them; "" takes one back.
        output: write the card there, and leave the model's folder as it is.

    Raises:
        ValueError: as `save_results`; where there is a card that isn't the one made of what is known of the run.
    """
    with _facts_of(folder, output, needs_card=True) as facts:
        facts["about"] = {name: text for name, text in {**facts.get("about", {}), **about}.items() if text}


@contextmanager
def _facts_of(folder: Path, output: Path | None = None, needs_card: bool = False) -> Iterator[dict[str, Any]]:
    """
    What is known of a finished run, to be changed; then it is written again, and the card too, unless somebody wrote
    into it. Where the card is what is wanted, that is an error.
    """
    from modeling_vanilla.model_card.card import is_made_of, write_card

    file, card = folder / RESULTS, (output or folder) / "README.md"
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        text = card.read_text(encoding="utf-8") if card.is_file() else ""
        is_own = not text or is_made_of(facts, text)
        yield facts
        if is_own or is_made_of(facts, text):
            write_card(output or folder, facts)
        elif needs_card:
            raise ChangedCard(f"{card}: isn't the card that was written of this run: move it away to have one written")
        else:
            logger.warning("%s: isn't the card that was written of this run, so it stays as it is", card)
        if output is None:
            write_results(folder, facts)
    except OSError as error:
        raise ValueError(
            f"{error.filename or file}: {error.strerror}: a card is made of what `vanilla train` wrote"
        ) from error
    except ChangedCard:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not what `vanilla train` wrote: {error}") from error


def _same_figure(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one["dataset"], one["name"]) == (other["dataset"], other["name"])


def open_output_dir(
    folder: Path, settings: dict[str, Any], overwrite: bool = False, allow_changes: bool = False
) -> Path | None:
    """
    Makes the folder ready for a run; to be called by one process. What the run replaces is put aside (`unless_begun`).

    Args:
        folder: where the model will be.
        settings: the run's, as they are kept beside the model.
        overwrite: replace a finished model, a run with other settings, or other files in the way.
        allow_changes: go on with an unfinished run although its settings were others.

    Returns:
        the checkpoint to go on from, where the folder holds an unfinished run of the same settings that has one.

    Raises:
        ValueError: when the folder can't be written, or (without `overwrite`) holds something that isn't to be lost.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: is a file, not a folder: choose another --output_dir")
        folder.mkdir(parents=True, exist_ok=True)
        give_back(folder)  # of a run that was killed before it began
        recipe, checkpoint = folder / RECIPE, last_checkpoint(folder)
        before = _read_recipe(recipe) if recipe.is_file() else None
        # A run that was stopped while it translated the test sets has weights at its root, and isn't finished.
        finished = bool(_matching(folder, WEIGHTS)) and (not checkpoint or (folder / RESULTS).is_file())
        shutil.rmtree(folder / ASIDE, ignore_errors=True)
        if checkpoint and before is not None and not finished:
            changes = _differences(before, settings)
            if changes and allow_changes and not overwrite:
                logger.warning("%s: going on with other settings (%s)", folder, "; ".join(changes))
                _write_recipe(recipe, settings)
                changes = []
            if not changes:
                return checkpoint
        in_the_way = _in_the_way(folder, finished, checkpoint, before, settings)
        if in_the_way and not overwrite:
            remedy = "choose another --output_dir, or add --overwrite_output_dir to replace it"
            if checkpoint and not finished and before is not None:
                remedy += ", or --allow_changed_settings to go on with it as it is now"
            raise ValueError(f"{folder}: holds {in_the_way}: {remedy}")
        (folder / MOVING).mkdir()
        for path in _matching(folder, OURS):
            path.rename(folder / MOVING / path.name)
        (folder / MOVING).rename(folder / REPLACED)
        _write_recipe(recipe, settings)
    except OSError as error:
        raise ValueError(f"{folder}: can't be used as the output folder: {error.strerror}") from error
    return None


@contextmanager
def unless_begun(folder: Path | None) -> Iterator[None]:
    """Gives back what a run was to replace if it fails before it has begun; for None, another process does that."""
    try:
        yield
    except BaseException:
        if folder:
            give_back(folder)
        raise


def give_back(folder: Path) -> None:
    """Makes a folder what it was before `open_output_dir`, unless the run has begun."""
    if (folder / REPLACED).is_dir():
        for path in _matching(folder, OURS):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (folder / REPLACED).rename(folder / MOVING)
    if (folder / MOVING).is_dir():  # what isn't in it is where it was
        for path in (folder / MOVING).iterdir():
            path.rename(folder / path.name)
        (folder / MOVING).rmdir()


class Begun(TrainerCallback):
    """Removes what a run replaces once it begins."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            shutil.rmtree(Path(args.output_dir) / REPLACED, ignore_errors=True)


def _in_the_way(
    folder: Path, finished: bool, checkpoint: Path | None, before: dict[str, Any] | None, settings: dict[str, Any]
) -> str:
    """What a new run would destroy, in words; nothing where a run of ours never reached a checkpoint."""
    if finished and not (folder / RESULTS).is_file() and (folder / RECIPE).is_file():
        return "a trained model whose run was stopped before it was tested (`vanilla evaluate` does that)"
    if finished:
        return "a finished model"
    if checkpoint and before is not None:
        return f"an unfinished run with other settings ({'; '.join(_differences(before, settings))})"
    if before is not None and (broken := checkpoints(folder)):  # never from scratch by surprise
        faults = "; ".join(f"{path.name}: {fault_of(path)}" for path in broken)
        return f"an unfinished run whose checkpoints are all broken ({faults})"
    recipe = folder / RECIPE
    is_run = recipe.is_file() and recipe.read_text(encoding="utf-8", errors="replace").startswith(MARK)
    harmless = _matching(folder, UNSAVED) if is_run else []
    return ", ".join(path.name for path in _matching(folder, OURS) if path not in harmless)


def _read_recipe(recipe: Path) -> dict[str, Any]:
    """What a run before was told; nothing, and a warning, where that can't be read any more."""
    try:
        settings = yaml.safe_load(recipe.read_text(encoding="utf-8")) or {}
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        logger.warning("%s: can't be read: %s", recipe, str(error).splitlines()[0])
        return {}
    return settings if isinstance(settings, dict) else {}


def _write_recipe(recipe: Path, settings: dict[str, Any]) -> None:
    recipe.write_text(MARK + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _differences(before: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    return [
        f"{key} was {before.get(key)!r}, is {settings.get(key)!r}"
        for key in sorted((before.keys() | settings.keys()) - {"output_dir"})  # it is this folder, however spelled
        if before.get(key) != settings.get(key)
    ]


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


__all__ = [
    "RECIPE", "RESULTS", "Begun", "give_back", "open_output_dir", "save_about", "save_results", "unless_begun",
    "write_results",
]  # fmt: skip
