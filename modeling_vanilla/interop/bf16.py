"""Weights in bfloat16: half the size, for any machine that loads our models."""

from pathlib import Path

from modeling_vanilla.interop.common import new_folder, read_model


def convert(name_or_path: str | Path, folder: str | Path) -> None:
    """
    Writes a trained model with bfloat16 weights, its tokenizer and generation settings beside it. It is loaded as any
    other, and computes in bfloat16 unless another `dtype` is asked for.

    Args:
        name_or_path: a folder that `vanilla train` wrote, or a repository on the Hub.
        folder: where to write; must not exist, or be empty.

    Raises:
        ValueError: for a folder that holds something; where there is no model of ours.
    """
    with new_folder(folder) as folder:
        model, tokenizer = read_model(name_or_path, "bfloat16")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


__all__ = ["convert"]
