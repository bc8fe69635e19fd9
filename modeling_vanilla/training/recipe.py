"""Recipes: a YAML file of defaults, and a command line that wins over it."""

import argparse
import dataclasses
import datetime
import difflib
import importlib.resources
import inspect
import json
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from modeling_vanilla.configuration_vanilla import VanillaConfig
from modeling_vanilla.data.arguments import TASKS, DataArguments
from modeling_vanilla.decoding.lengths import EARLY_STOPPING, LENGTH_PENALTIES, length_divisor
from modeling_vanilla.errors import first_line
from modeling_vanilla.evaluation.metrics import DEFAULT_MEASURES, MEASURES, measure
from modeling_vanilla.training.arguments import VanillaTrainingArguments, has_fast_bf16
from modeling_vanilla.training.initial import CHANGEABLE, differences, initial_config

# What the tokenizer decides, or the model as such: not for a recipe to say.
NOT_SETTABLE = {
    *("vocab_size", "decoder_vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
    *("is_encoder_decoder", "use_cache", "tie_word_embeddings"),
}
# The library's, and ignored by what we put in their place.
BATCHES_OF_TOKENS = {
    "per_device_train_batch_size": "batches are counted in tokens, with max_tokens",
    "per_device_eval_batch_size": "batches are counted in tokens, with max_tokens",
    "train_sampling_strategy": "batches are always made of similar lengths, with max_tokens",
    **dict.fromkeys(
        ("dataloader_in_order", "dataloader_multiprocessing_context", "eval_use_gather_object"), "leave it out"
    ),
}
NOT_TRANSLATED = dict.fromkeys(
    (
        *("num_beams", "length_penalty", "length_penalty_type", "early_stopping", "measures"),
        *("generation_max_length", "generation_num_beams"),
    ),
    "nothing is translated",
)
OF_CLASSIFIERS = NOT_TRANSLATED | {
    "max_tokens": "batches are counted in examples, with per_device_train_batch_size",
    **dict.fromkeys(
        (
            *("bpe_dropout", "r_drop", "max_length_ratio", "drop_duplicates"),
            *("predict_with_generate", "generation_config"),
        ),
        "nothing is translated",
    ),
}
OF_IMAGES = dict.fromkeys(
    (
        "vocab_size",
        "tokens",
        "tokenizer_name_or_path",
        "max_length",
        "train_prefix",
        "validation_prefix",
        "test_prefix",
    ),
    "images have no text",
)
SAY_NOTHING = {"overwrite_output_dir", "allow_changed_settings", "hub_token"}  # of the run itself, or are secret
WITHOUT_EFFECT = {
    "auto_find_batch_size": "give smaller batches where memory doesn't suffice",
    "resume_from_checkpoint": "the same command again goes on with an unfinished run",
    "do_train": "`vanilla train` always trains: leave it out",
    "do_eval": "eval_strategy says when the validation set is scored",
    "do_predict": "test sets are always scored at the end: leave it out",
    "hub_always_push": "the model is pushed once, at the end: leave it out",
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), "Liger has no kernels for this model: leave it out"),
    **dict.fromkeys(
        (
            "prediction_loss_only",
            "include_for_metrics",
            "bf16_full_eval",
            "fp16_full_eval",
            "eval_accumulation_steps",
            "batch_eval_metrics",
            "eval_do_concat_batches",
            "length_column_name",
            "label_names",
            "dataloader_drop_last",
            "remove_unused_columns",
            "sortish_sampler",
            "use_cache",
        ),
        "leave it out",
    ),
}
ONE_VALUE = {"average_tokens_across_devices", "hub_strategy", "save_only_model"}  # any but the default is refused


@dataclass
class ModelArguments:
    """The model's shape and its tokenizer, and how it translates once trained."""

    model: str = field(
        default="base",
        metadata={"help": "A preset (tiny, small, base, big), or a YAML file of VanillaConfig's fields."},
    )
    vocab_size: int = field(default=37000, metadata={"help": "Tokens of the shared vocabulary that is trained."})
    tokens: str = field(
        default="pieces",
        metadata={
            "help": "What the vocabulary that is trained holds: pieces of words (BPE), or whole words, for classifying "
            "a few thousand texts.",
            "choices": ("pieces", "words"),
        },
    )
    tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "Use this tokenizer, and train none: a folder, or an id on the Hub."}
    )
    init_from: str | None = field(
        default=None,
        metadata={
            "help": "Begin with the weights, the architecture and the tokenizer of this model: a folder, or an id on "
            "the Hub. Dropout may be another; optimizer and schedule are new."
        },
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={"help": "eager, sdpa ... Default: the faster one for dtype and length."},
    )
    num_beams: int = field(default=4, metadata={"help": "Beams of the finished model (section 6.1)."})
    length_penalty: float = field(
        default=1.0, metadata={"help": "Exponent of the length in a finished translation's score; 1 is the mean."}
    )
    length_penalty_type: str = field(
        default="power",
        metadata={
            "help": "That score's divisor for n tokens: n^alpha (power, as fairseq) or ((5 + n) / 6)^alpha (paper).",
            "choices": LENGTH_PENALTIES,
        },
    )
    early_stopping: str = field(
        default="false",
        metadata={
            "help": "Its beam search ends with as many translations as beams (true), when a better one is unlikely "
            "(false, the library's default), or when none can come (never).",
            "choices": tuple(EARLY_STOPPING),
        },
    )
    measures: list[str] = field(
        default_factory=lambda: list(DEFAULT_MEASURES),
        metadata={"help": f"How translations are scored: {', '.join(MEASURES)}."},
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace a finished model, or another run, that output_dir holds."}
    )

    allow_changed_settings: bool = field(
        default=False, metadata={"help": "Go on with an unfinished run in output_dir whose settings were others."}
    )

    def __post_init__(self) -> None:
        for name in self.measures:
            measure(name)
        if self.num_beams < 1:
            raise ValueError(f"num_beams={self.num_beams}: must be at least 1 (greedy search)")
        length_divisor(1, self.length_penalty, self.length_penalty_type)
        if self.init_from and self.tokenizer_name_or_path:
            raise ValueError("init_from and tokenizer_name_or_path: give one of the two; the first brings a tokenizer")


@dataclass
class Recipe:
    """Everything that a run was told; `settings` is what was asked for, without the defaults."""

    data: DataArguments
    model: ModelArguments
    training: VanillaTrainingArguments
    config: dict[str, Any]
    settings: dict[str, Any]

    def vanilla_config(self, **changes: Any) -> VanillaConfig:
        """
        The preset with this recipe's changes, for a tokenizer's vocabulary; or the config of `init_from`, whose
        tokenizer decided on that already.

        Raises:
            ValueError: for a value that can't be, or that isn't that of `init_from`.
        """
        if self.model.init_from is None:
            return VanillaConfig(**{**load_preset(self.model.model), **self.config, **changes})
        config = initial_config(self.model.init_from)
        preset = load_preset(self.model.model) if "model" in self.settings else {}
        asked = {key: value for key, value in {**preset, **self.config}.items() if not key.startswith(self._other_side)}
        vocab_size = self.settings.get("vocab_size", config.vocab_size)
        if self.model.tokens == "pieces" or vocab_size < config.vocab_size:  # of words, it is what there may be at most
            asked["vocab_size"] = vocab_size
        if different := "; ".join(differences(config, asked)):
            raise ValueError(
                f"init_from={self.model.init_from!r}: its architecture is not what is asked for: {different}: leave "
                "that out of the recipe and the command line, or train from scratch"
            )
        kept = {key: value for key, value in changes.items() if key not in NOT_SETTABLE}
        for key, value in {**{key: self.config[key] for key in CHANGEABLE & self.config.keys()}, **kept}.items():
            setattr(config, key, value)
        return config

    @property
    def _other_side(self) -> str:
        """How the fields begin that this task's model, a half of the Transformer, makes nothing of."""
        sides = {"translation": "-", "language_modeling": "encoder_"}
        return sides.get(self.data.task, "decoder_")


def config_fields() -> dict[str, type]:
    """The fields of `VanillaConfig` that a recipe may set, with the type that a string is read as."""
    result = {}
    for name, hint in VanillaConfig.__annotations__.items():
        if name in NOT_SETTABLE:
            continue
        result[name] = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint  # `float | int`: float
    return result


class _Parser(HfArgumentParser):
    def error(self, message: str) -> typing.NoReturn:  # argparse would print a page of usage
        raise ValueError(re.sub(r"(--\w+)/--[\w/-]+", r"\1", message))  # one spelling of an option is enough


def make_parser() -> argparse.ArgumentParser:
    """The parser of everything that a recipe or `vanilla train` takes; its errors are ValueErrors of one line."""
    parser = _Parser(
        (DataArguments, ModelArguments, VanillaTrainingArguments), prog="vanilla train", allow_abbrev=False
    )
    for action in parser._actions:
        tasks = [task for task in TASKS if action.dest not in _without_effect(task)]
        if not tasks or action.dest in ONE_VALUE:
            action.help = argparse.SUPPRESS
        elif len(tasks) < len(TASKS):
            action.help = f"{action.help} Only for {', '.join(tasks)}."
        if "Default" in (action.help or ""):  # and says more than the value does
            action.default = argparse.SUPPRESS
    _move(parser, "data", _field_names(DataArguments))
    _move(parser, "model and tokenizer", _field_names(ModelArguments))
    group, texts = parser.add_argument_group("model (VanillaConfig); default: the preset's"), _config_help()
    for name, kind in config_fields().items():
        read = _boolean if kind is bool else kind
        group.add_argument(f"--{name}", type=read, default=argparse.SUPPRESS, help=texts.get(name))
    _move(parser, "training", VanillaTrainingArguments.__annotations__)
    _move(parser, "training: the library's other arguments", _field_names(VanillaTrainingArguments))
    return parser


def _move(parser: argparse.ArgumentParser, title: str, names: typing.Iterable[str]) -> None:
    """Shows these options, where they are in no group yet, in one of their own at the help's end."""
    rest, group = parser._optionals._group_actions, parser.add_argument_group(title)
    group._group_actions = [action for name in names for action in rest if action.dest == name]
    rest[:] = [action for action in rest if action not in group._group_actions]


def _config_help() -> dict[str, str]:
    """What the docstring of `VanillaConfig` says of each field: its type or its choices, and what it is."""
    text = inspect.cleandoc(VanillaConfig.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for names, kind, meaning in re.findall(r"^ {4}(\w.*?) \((.+?)\): (.+?)(?=\n {4}\w|\Z)", text, re.M | re.S):
        words = f"{re.split(r', (?:[*]|default)', kind)[0]}: {meaning}".replace("`", "").split()
        found |= dict.fromkeys(names.split(", "), " ".join(words))
    return found


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def shipped(name: str) -> Traversable | None:
    """A YAML file that the package brings, by its name with or without `.yaml`; None where there is none."""
    file = importlib.resources.files("modeling_vanilla.configuration") / f"{name.removesuffix('.yaml')}.yaml"
    return file if file.is_file() else None


def shipped_names() -> list[str]:
    """The names of all YAML files that the package brings."""
    folder = importlib.resources.files("modeling_vanilla.configuration")
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read_yaml(name: str) -> dict[str, Any]:
    """
    A mapping from a YAML file: a path, or else the name of one that the package brings.

    Raises:
        ValueError: when there is no such file, or it isn't YAML or not a mapping, with the line where that is known.
    """
    path = Path(name)
    file: Path | Traversable | None = path
    if not path.is_file():  # in a clone or not, `configuration/x.yaml` and plain `x` mean the package's own
        file = shipped(path.name) if path.parent in (Path(), Path("configuration")) else None
    if file is None:
        raise ValueError(f"{name}: no such file; the package brings {', '.join(shipped_names())}")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not a text file in UTF-8 (byte {error.start})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{name}{line}: not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{name}: must hold `key: value` lines")
    return content


def load_preset(name: str) -> dict[str, Any]:
    """
    The `VanillaConfig` fields of a preset or of a YAML file.

    Raises:
        ValueError: for an unknown file or field.
    """
    preset = read_yaml(name)
    for key in preset:
        if key not in config_fields():
            raise ValueError(f"{name}: {_unknown(key, config_fields())}")
    return preset


def _unknown(key: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"{key!r} is not a setting" + (f"; did you mean {close[0]!r}?" if close else "")


def _as_arguments(recipe: dict[str, Any]) -> list[str]:
    """`key: value` pairs as the words of a command line, so that both are read and checked by one parser."""
    words = []
    for key, value in recipe.items():
        if value is None:
            continue
        words.append(f"--{key}")
        for item in value if isinstance(value, list) else [value]:
            is_word = isinstance(item, str | datetime.date)  # which a folder may be called
            words.append(str(item) if is_word else json.dumps(item, default=str))  # true, 5, {"a": 1}
    return words


def load_recipe(name: str | None, overrides: Sequence[str] = ()) -> Recipe:
    """
    Reads a recipe and a command line.

    Args:
        name: the recipe's path, or the name of one that the package brings; None for the command line alone.
        overrides: `--key value` words, which win over the recipe.

    Raises:
        ValueError: for an unknown key (naming the nearest), or a value of the wrong type or out of range.
    """
    parser = make_parser()
    options = {option.lstrip("-"): option for action in parser._actions for option in action.option_strings}
    recipe = read_yaml(name) if name else {}
    for key in recipe:
        if f"--{key}" not in options.values() or key == "help":
            raise ValueError(f"{name}: {_unknown(key, [k for k in options if '-' not in k])}")
    for action in parser._actions:
        value = recipe.get(action.dest)
        is_word = action.dest.endswith("_lang") or bool(action.choices)  # Norwegian, or save_strategy
        if isinstance(value, bool) and is_word and str(value).lower() not in (action.choices or ()):
            raise ValueError(f"{name}: {action.dest}: YAML reads this word as {str(value).lower()}: put it in quotes")
        action.default = argparse.SUPPRESS  # so that what is parsed is what was asked for; dataclasses fill in the rest
    where = name
    try:
        _parse(parser, _as_arguments(recipe))  # the recipe alone, so that an error says whose it is
        where = "command line"
        for word in overrides:
            option = word.split("=")[0]
            if option.startswith("--") and option not in options.values():
                raise ValueError(_unknown(option.removeprefix("--"), [k for k in options if "-" not in k]))
        given = {f"--{word.split('=')[0][2:].replace('-', '_')}" for word in overrides if word.startswith("--")}
        for key, other in (("data_dir", "dataset_name"), ("dataset_name", "data_dir")):
            if f"--{key}" in given and f"--{other}" not in given:
                recipe.pop(other, None)  # the command line wins: one place of the data over the other
        asked = _parse(parser, [*_as_arguments(recipe), *overrides])
        without_effect = _without_effect(asked.get("task"))
        for key in asked.keys() & without_effect.keys():
            where = "command line" if f"--{key}" in given else name
            raise ValueError(f"{key!r} has no effect here: {without_effect[key]}")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    settings = {key: _plain(value) for key, value in asked.items() if key not in SAY_NOTHING}
    if Path(model := asked.get("model", "")).is_file():  # which may be changed before the run goes on
        settings = load_preset(model) | settings
    *groups, config = (
        {key: value for key, value in asked.items() if key in names}
        for names in (*map(_field_names, (DataArguments, ModelArguments, VanillaTrainingArguments)), config_fields())
    )
    data, model, training = groups
    if not training.keys() & {"bf16", "fp16"}:
        training["bf16"] = has_fast_bf16(training.get("use_cpu", False))
    try:
        arguments = VanillaTrainingArguments(**training)
    except ImportError as error:  # DeepSpeed's package, for instance
        raise ValueError(f"a setting needs a package that isn't installed: {first_line(error)}") from error
    found = Recipe(DataArguments(**data), ModelArguments(**model), arguments, config, settings)
    _check_metric(found, name)
    return found


def _check_metric(recipe: Recipe, where: str | None) -> None:
    metric, task = recipe.training.metric_for_best_model, recipe.data.task
    measures = recipe.model.measures if task == "translation" and recipe.training.predict_with_generate else ()
    known = ("nll", "loss", "accuracy") if "classification" in task else ("nll", "loss", "ppl", *measures)
    if metric is not None and metric.removeprefix("eval_") not in known:
        raise ValueError(f"{where}: metric_for_best_model={metric!r}: must be one of {', '.join(known)}")


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    return {key: getattr(value, "value", value) for key, value in vars(parser.parse_args(words)).items()}


def _without_effect(task: str | None) -> dict[str, str]:
    """What a recipe of this task may not set, and why."""
    if task == "image_classification":
        return WITHOUT_EFFECT | OF_CLASSIFIERS | OF_IMAGES
    if task == "text_classification":
        return WITHOUT_EFFECT | OF_CLASSIFIERS
    if task == "language_modeling":
        one_text = "what goes in and what is predicted are one text"
        one_text_only = dict.fromkeys(("bpe_dropout", "max_length_ratio"), one_text)
        return WITHOUT_EFFECT | BATCHES_OF_TOKENS | NOT_TRANSLATED | one_text_only
    return WITHOUT_EFFECT | BATCHES_OF_TOKENS


def _plain(value: Any) -> Any:
    """A setting as YAML and JSON have it."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value


def _field_names(arguments: type) -> list[str]:
    return [field.name for field in dataclasses.fields(arguments)]


__all__ = ["ModelArguments", "Recipe", "load_preset", "load_recipe", "make_parser", "read_yaml", "shipped_names"]
