"""What a folder holds, and loading it."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from modeling_vanilla.errors import not_loaded

OTHER_ENGINES = {"ctranslate2": "model.bin", "onnx": "export.json"}  # and the file by which their folders are known
# What models that don't translate are called, and the library's pipeline for them.
OTHER_USES = {
    "ForSequenceClassification": "text-classification",
    "ForImageClassification": "image-classification",
    "ForCausalLM": "text-generation",
}


def engine_of(name_or_path: str | Path) -> Any:
    """The engine whose format a folder holds: ours, unless `vanilla convert` wrote it for another."""
    return next((name for name, file in OTHER_ENGINES.items() if (Path(name_or_path) / file).is_file()), "vanilla")


def load_model(
    name_or_path: str | Path, dtype: str | torch.dtype = "auto", **kwargs: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A translation model and its tokenizer; a `ValueError` of one line where there is none."""
    path = Path(name_or_path)
    if (engine := engine_of(path)) != "vanilla":
        raise ValueError(f"{path}: holds a model for engine {engine!r}, not ours: give the one it was converted from")
    if path.is_dir() and not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise ValueError(f"{path}: no model there (config.json is missing); give a folder that `vanilla train` wrote")
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name_or_path, dtype=dtype, **{"use_safetensors": True} | kwargs)
        return model, AutoTokenizer.from_pretrained(name_or_path, **kwargs)
    except Exception as error:  # whatever a spoiled file makes the libraries raise
        what = other_use(name_or_path, **kwargs) or not_loaded(name_or_path, "model", error)
        raise ValueError(f"{name_or_path}: {what}") from error


def other_use(name_or_path: str | Path, **kwargs: Any) -> str:
    """In words, what a model that doesn't translate is, and is for; nothing where that isn't known."""
    try:
        [name] = PreTrainedConfig.get_config_dict(name_or_path, **kwargs)[0]["architectures"]
        task = next(task for ending, task in OTHER_USES.items() if name.endswith(ending))
    except Exception:  # no config there, or a spoiled one
        return ""
    return f"holds a {name}, which doesn't translate: use transformers' pipeline(\"{task}\", ...)"


def target_language(name_or_path: str | Path) -> str | None:
    """
    What a model was trained to write, where that is known: its results.json says so, and, of what was made from it, the
    tokenizer's settings.
    """
    if Path(name_or_path).is_file():  # of translations
        return None
    for read in (_results, get_tokenizer_config):
        try:
            language = read(name_or_path)["target_lang"]
        except Exception:  # another's model, a spoiled file, or no network
            continue
        if language:
            return str(language)
    return None


def _results(folder: str | Path) -> Any:
    return json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))


__all__ = ["OTHER_ENGINES", "engine_of", "load_model", "target_language"]
