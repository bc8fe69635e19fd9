"""What a run takes over from a trained model (`init_from`): its architecture, weights and tokenizer."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.errors import not_loaded

CHANGEABLE = {"dropout", "attention_dropout", "activation_dropout"}  # weights fit with any
MAY_BE_NEW = ("classifier.", "patch_projection.")  # where an encoder is given another head


def initial_config(name: str) -> VanillaConfig:
    """
    The config of a trained model: a folder, or an id on the Hub.

    Raises:
        ValueError: when there is none, or it is of another architecture.
    """
    try:
        kind = PreTrainedConfig.get_config_dict(name)[0].get("model_type")
        if kind != VanillaConfig.model_type:
            raise ValueError(f"its model_type is {kind!r}, and {VanillaConfig.model_type!r} is needed")
        return VanillaConfig.from_pretrained(name)
    except Exception as error:  # whatever a spoiled file makes the library raise
        raise _refusal(name, error) from error


def differences(config: VanillaConfig, asked: dict[str, Any]) -> list[str]:
    """Where settings that a recipe asks for are others than a trained model's, in words."""
    return [
        f"{key} is {getattr(config, key)!r}, not {value!r}"
        for key, value in asked.items()
        if key not in CHANGEABLE and getattr(config, key) != value
    ]


def load_initial(model_class: type[PreTrainedModel], name: str, config: VanillaConfig) -> PreTrainedModel:
    """
    A model of this class and config, in float32, with the weights of `name`; a classifier's last layer is new where
    the labels are.

    Raises:
        ValueError: when the weights can't be read, or aren't those of such a model.
    """
    old = initial_config(name)
    try:
        model, info = model_class.from_pretrained(
            name, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    except Exception as error:
        raise _refusal(name, error) from error
    new = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    if lacking := sorted(key for key in new if not key.startswith(MAY_BE_NEW)):
        kind = (old.architectures or ["another model"])[0]
        raise ValueError(
            f"init_from={name!r}: a {kind}, without {lacking[0]}{f' and {len(lacking) - 1} more' * (len(lacking) > 1)} "
            f"of the {model_class.__name__} that this task trains: give a model of the same task"
        )
    if hasattr(model, "classifier") and old.id2label != config.id2label:
        model.classifier = model_class(config).classifier
    return model


def load_tokenizer(setting: str, name: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder or an id on the Hub, which a setting names; a `ValueError` when there is none."""
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise ValueError(f"{setting}={str(name)!r}: {not_loaded(name, 'tokenizer', error)}") from error


def _refusal(name: str, error: Exception) -> ValueError:
    return ValueError(f"init_from={name!r}: {not_loaded(name, 'model', error)}")


__all__ = ["CHANGEABLE", "differences", "initial_config", "load_initial", "load_tokenizer"]
