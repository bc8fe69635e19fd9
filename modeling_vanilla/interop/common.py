"""What all conversions share: the model to convert, and the folder to write to."""

from pathlib import Path
from typing import Any

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.decoding.engines import load_model


def read_model(name_or_path: str | Path, dtype: str = "float32") -> tuple[Any, Any]:
    """
    A trained translation model of ours, in evaluation mode, and its tokenizer.

    Raises:
        ValueError: where there is none; for another architecture, or a model whose weights are quantised.
    """
    model, tokenizer = load_model(name_or_path, dtype)
    if not isinstance(model.config, VanillaConfig):
        raise ValueError(f"{name_or_path}: a {model.config.model_type} model; only our own can be converted")
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError(f"{name_or_path}: its weights are quantised; give the model that it was converted from")
    return model.eval(), tokenizer


def new_folder(name: str | Path) -> Path:
    """Makes the folder to write to; a `ValueError` where it can't be made, or holds something."""
    folder = Path(name)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder}: is there already: give a new or an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: can't be written: {error.strerror}") from error
    return folder


__all__ = ["new_folder", "read_model"]
