"""The mean of several checkpoints' weights (section 6.1: "averaging the last 5 checkpoints")."""

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.decoding.engines import target_language
from modeling_vanilla.interop.common import new_folder
from modeling_vanilla.interop.hub import TOKENIZER as TOKENIZER_FILES
from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.checkpoints import checkpoints, is_due, remove, sound_checkpoints, state_of, step_of
from modeling_vanilla.training.initial import CHANGEABLE

TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
BESIDE_WEIGHTS = ("config.json", "generation_config.json", *TOKENIZER_FILES, "preprocessor_config.json")


def average_weights(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """
    The mean of the weights that several folders hold, summed in float64, in the precision that they are saved in.

    A matrix that several modules share is saved, and averaged, once. One tensor at a time is read of each folder.

    Raises:
        ValueError: for less than one folder, one without safetensors, or folders of different models.
    """
    if not folders:
        raise ValueError("no checkpoints to average")
    with ExitStack() as stack:
        models = [_open(Path(folder), stack) for folder in folders]
        first = models[0]
        for folder, model in zip(folders[1:], models[1:], strict=True):
            if different := sorted(first.keys() ^ model.keys()):
                raise ValueError(f"{folder}: another model than {folders[0]}: only one of them has {different[0]}")
        average = {}
        for name, file in first.items():
            total = torch.zeros(file.get_slice(name).get_shape(), dtype=torch.float64)
            for folder, model in zip(folders, models, strict=True):
                weight = model[name].get_tensor(name)
                if not weight.is_floating_point():
                    raise ValueError(f"{folder}: {name} is {weight.dtype}: quantised weights have no mean")
                if weight.shape != total.shape:
                    raise ValueError(
                        f"{folder}: another model than {folders[0]}: {name} is {tuple(weight.shape)}, not "
                        f"{tuple(total.shape)}"
                    )
                total += weight
            average[name] = (total / len(models)).to(weight.dtype)
    return average


def _open(folder: Path, stack: ExitStack) -> dict[str, safe_open]:
    """Each weight's name, and the file that holds it."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    try:
        names = [SAFE_WEIGHTS_NAME]
        if index.is_file():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if any(Path(name).name != name for name in names):
            raise ValueError(f"{index}: names a file outside its folder")
        files = [stack.enter_context(safe_open(str(folder / name), "pt")) for name in names]
    except (OSError, SafetensorError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}: no model in safetensors there: {error}") from error
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118


def average_checkpoints(folders: Sequence[str | Path], output: str | Path) -> None:
    """
    Writes the averaged model, with what stands beside the last one's weights (or in the folder above a checkpoint).

    Raises:
        ValueError: as in `average_weights`; when the output folder isn't empty, or can't be written.
    """
    last = Path(folders[-1])
    with new_folder(output) as output:
        average = average_weights(folders)
        for folder in folders[:-1]:
            if different := _differences(Path(folder), last):
                raise ValueError(f"{folder}: another model than {last}: they differ in {', '.join(different)}")
        save_torch_state_dict(average, output, metadata={"format": "pt"})
        places = (last.parent, last) if last.name.startswith("checkpoint-") else (last,)
        for place in places:
            for file in (file for pattern in BESIDE_WEIGHTS for file in place.glob(pattern) if file.is_file()):
                shutil.copyfile(file, output / file.name)
        _keep_language(output, next(filter(None, map(target_language, places)), None))


def _keep_language(folder: Path, language: str | None) -> None:
    """Has the tokenizer's settings name the target language, as older runs' don't."""
    settings = _read_json(folder / TOKENIZER_SETTINGS)
    if language and settings:
        text = json.dumps({**settings, "target_lang": language}, indent=2, ensure_ascii=False)
        (folder / TOKENIZER_SETTINGS).write_text(f"{text}\n", encoding="utf-8")


def _differences(one: Path, other: Path) -> list[str]:
    """What two folders' models compute otherwise: of their settings but for dropout, and of their tokenizers."""
    configs = [_read_json(folder / "config.json") for folder in (one, other)]
    if not all(configs):
        return []
    names = {"model_type", *VanillaConfig.__dataclass_fields__} - CHANGEABLE
    different = [name for name in sorted(names) if configs[0].get(name) != configs[1].get(name)]
    tokenizers = [
        [file.read_bytes() for file in (folder / TOKENIZER, folder.parent / TOKENIZER) if file.is_file()][:1]
        for folder in (one, other)
    ]
    return different + ["tokenizer"] * (all(tokenizers) and tokenizers[0] != tokenizers[1])


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def last_checkpoints(folder: str | Path, count: int) -> list[Path]:
    """The newest `count` complete checkpoints of a run, the oldest first; without what an interruption wrote."""
    _check_run(folder)
    newest = list(islice(filter(is_due, sound_checkpoints(Path(folder))), max(count, 0)))
    return _enough(newest, count, folder)[::-1]


def best_checkpoints(folder: str | Path, count: int, metric: str | None, greater_is_better: bool | None) -> list[Path]:
    """The `count` complete checkpoints with the best validation `metric` at their update, the best first."""
    _check_run(folder)
    sound = list(sound_checkpoints(Path(folder)))
    history = state_of(sound[0])["log_history"] if sound else []
    values = metric_by_step(history, metric)
    if sound and not values:
        known = sorted({key.removeprefix("eval_") for entry in history for key in entry if key.startswith("eval_")})
        known = [name for name in known if not name.endswith(("runtime", "_per_second"))]
        by = f"they were by {', '.join(known)}" if known else "nothing was validated"
        raise ValueError(f"{folder}: no checkpoint was scored by {metric}: {by}")
    scored = [path for path in sound if step_of(path) in values]
    return _enough(ranked(scored, values, greater_is_better), count, folder, f" that were scored by {metric}")[:count]


def keep_best(folder: Path, args: VanillaTrainingArguments, history: Sequence[dict]) -> None:
    """Removes a run's checkpoints but the newest and the `args.keep_best` best, by what the run's log says of them."""
    values = metric_by_step(history, args.metric_for_best_model)
    every = checkpoints(folder)
    worse = ranked(every, values, args.greater_is_better)[args.keep_best :]
    remove(path for path in worse if path != every[-1])


def ranked(paths: Iterable[Path], values: dict[int, float], greater_is_better: bool | None) -> list[Path]:
    """The best first, of equals the oldest, as the library's Trainer has it; last what has no value."""
    sign = -1 if greater_is_better else 1
    return sorted(paths, key=lambda path: (sign * values.get(step_of(path), sign * math.inf), step_of(path)))


def metric_by_step(history: Sequence[dict], metric: str | None) -> dict[int, float]:
    """What a trainer's log says of a validation metric, with or without its prefix, at each update."""
    key = f"eval_{(metric or 'nll').removeprefix('eval_')}"
    return {entry["step"]: entry[key] for entry in history if math.isfinite(entry.get(key, math.nan))}


def _check_run(folder: str | Path) -> None:
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: no such folder: give one that `vanilla train` wrote")


def _enough(checkpoints: list[Path], count: int, folder: str | Path, which: str = "") -> list[Path]:
    if count < 1:
        raise ValueError(f"{count} checkpoints can't be averaged: give at least 1")
    if len(checkpoints) < count:
        raise ValueError(
            f"{folder}: holds {len(checkpoints)} complete checkpoints{which}, not {count}: average fewer, or keep "
            "more of them (save_total_limit, keep_best)"
        )
    return checkpoints


__all__ = [
    "average_checkpoints",
    "average_weights",
    "best_checkpoints",
    "keep_best",
    "last_checkpoints",
    "metric_by_step",
    "ranked",
]
