"""What a folder holds, and loading it."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from modeling_vanilla.errors import not_loaded

OTHER_ENGINES = {"ctranslate2": "model.bin", "onnx": "export.json"}  # and the file by which their folders are known


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
        raise ValueError(f"{name_or_path}: {not_loaded(name_or_path, 'model', error)}") from error


__all__ = ["OTHER_ENGINES", "engine_of", "load_model"]
