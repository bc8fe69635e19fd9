"""What all conversions share: the model to convert, and the folder to write to."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSeq2SeqLM

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.decoding.engines import load_model, target_language
from modeling_vanilla.decoding.lengths import max_new_tokens
from modeling_vanilla.errors import first_line

UNLIMITED = 10**6  # tokens: a tokenizer that says more, or nothing, sets no limit


def read_model(name_or_path: str | Path, dtype: str = "float32") -> tuple[Any, Any]:
    """
    A trained translation model of ours, in evaluation mode, and its tokenizer; of an adapter, its base with the
    adapter merged into it.

    Raises:
        ValueError: where there is none; for another architecture, a model whose weights are quantised, or an adapter
            that can't be merged.
    """
    model, tokenizer = load_model(name_or_path, dtype)
    if not isinstance(model.config, VanillaConfig):
        raise ValueError(f"{name_or_path}: a {model.config.model_type} model; only our own can be converted")
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError(f"{name_or_path}: its weights are quantised; give the model that it was converted from")
    if adapters := getattr(model, "peft_config", None):
        model = merged(name_or_path, next(iter(adapters.values())), dtype)
    if language := target_language(name_or_path):  # which older folders' tokenizers don't say
        tokenizer.init_kwargs["target_lang"] = language
    return model.eval(), tokenizer


def check_fast(name_or_path: str | Path, tokenizer: Any) -> None:
    """Refuses a tokenizer that other engines' folders can't carry."""
    if not tokenizer.is_fast:
        raise ValueError(f"{name_or_path}: its {type(tokenizer).__name__} can't be converted: it has no fast version")


def reach(config: VanillaConfig, tokenizer: Any) -> None:
    """
    Has computed positions tabulated for the longest source that the tokenizer lets through and its translation: the
    tables of other engines don't grow.
    """
    if config.position_encoding in ("sinusoidal", "rotary") and tokenizer.model_max_length < UNLIMITED:
        longest = max_new_tokens(tokenizer.model_max_length)
        config.max_position_embeddings = max(config.max_position_embeddings, longest)


def merged(name_or_path: str | Path, adapter: Any, dtype: str) -> Any:
    """A plain model that computes what PEFT's adapter and its base do; a `ValueError` where there is none."""
    from peft import PeftModel

    ids = torch.arange(3)[None]
    try:
        with warnings.catch_warnings(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")  # PEFT's about ties: what comes of them is looked at here
            base = AutoModelForSeq2SeqLM.from_pretrained(
                adapter.base_model_name_or_path, revision=adapter.revision or "main", dtype=torch.float32,
                use_safetensors=True,
            )  # fmt: skip
            whole = PeftModel.from_pretrained(base, str(name_or_path)).eval()
            expected = whole(input_ids=ids, decoder_input_ids=ids).logits
            plain = whole.merge_and_unload()
            plain.save_pretrained(folder)  # which settles what is still tied
            found = plain(input_ids=ids, decoder_input_ids=ids).logits
            model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype)
    except Exception as error:  # PEFT has many kinds of adapters, and faults
        raise ValueError(f"{name_or_path}: its adapter can't be merged into its model: {first_line(error)}") from error
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"{name_or_path}: its adapter can't be merged into its model, for it changes one of two layers that share "
            "their weights: adapt others"
        )
    return model


@contextmanager
def new_folder(name: str | Path) -> Iterator[Path]:
    """
    Makes the folder to write to; what fails in the block leaves nothing of it.

    Raises:
        ValueError: where it can't be made or written, or holds something.
    """
    folder = Path(name)
    try:
        is_new = not folder.exists()
        if not is_new and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder}: is there already: give a new or an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: can't be written: {error.strerror}") from error
    try:
        yield folder
        make_readable(folder)
    except BaseException as error:
        with suppress(OSError):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if is_new:
                folder.rmdir()
        if isinstance(error, OSError | SafetensorError):  # of a full disk safetensors makes its own
            raise ValueError(f"{folder}: can't be written: {getattr(error, 'strerror', None) or error}") from error
        raise


def make_readable(folder: Path) -> None:
    """Lets those read a model's weights who may read its config: safetensors writes its files for their owner alone."""
    for file in folder.glob("*.safetensors"):
        file.chmod((folder / "config.json").stat().st_mode & 0o777)


__all__ = ["check_fast", "make_readable", "new_folder", "reach", "read_model"]
