"""Writes a trained model's README.md from what its run recorded; what isn't known is said to be unknown."""

import importlib.resources
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from modeling_vanilla.model_card.curve import CURVE, draw_curve

# By task: the Hub's name for it, what the model does, and how it is used.
KINDS = {
    "translation": (
        "translation",
        "translates {direction}",
        """from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForSeq2SeqLM.from_pretrained("{name}")
batch = tokenizer([{example}], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))""",
    ),
    "language_modeling": (
        "text-generation",
        "continues text",
        """import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{name}")
prompt = torch.tensor([[model.config.decoder_start_token_id, *tokenizer({example}).input_ids[:-1]]])
print(tokenizer.decode(model.generate(prompt)[0], skip_special_tokens=True))""",
    ),
    "text_classification": (
        "text-classification",
        "labels text",
        """from transformers import pipeline

print(pipeline("text-classification", "{name}")({example}))""",
    ),
    "image_classification": (
        "image-classification",
        "labels images",
        """from transformers import pipeline

print(pipeline("image-classification", "{name}")("image.png"))""",
    ),
}

# What the Hub takes for a language: a code of two or three letters, with or without a region.
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")


def write_card(folder: Path, facts: dict[str, Any]) -> Path:
    """
    Writes `folder/README.md`, and the training curve beside it where matplotlib is there to draw it.

    Args:
        folder: the finished model's.
        facts: what `card_text` takes; without a `repo_id` the card has the folder's name.

    Returns:
        the file.
    """
    drawn = draw_curve(facts.get("history", []), folder / CURVE, _unit(facts))
    path = folder / "README.md"
    text = card_text({**facts, "repo_id": facts.get("repo_id") or folder.resolve().name}, drawn)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def card_text(facts: dict[str, Any], has_curve: bool) -> str:
    """
    The card as text.

    Args:
        facts: what the run recorded. A run of an older version recorded less; what is marked with * may be missing:
            `task`*: a key of `KINDS`, translation unless given;
            `source_lang`, `target_lang`: codes, or None;
            `data`: where the data came from, one line;
            `pairs`: what the filters kept and dropped, one line;
            `splits`*: the number of examples that each split has, name to count;
            `parameters`: their exact number;
            `config`: the fields of the model's config that describe its shape, name to value;
            `settings`: the recipe, name to value;
            `hyperparameters`*: the most important settings as they were in effect, defaults included;
            `init_from`*: the model that training began with; None when it began from scratch;
            `updates`, `seconds`, `hardware`: how long training took, and where;
            `resumed_at`*: the update that this time is counted from, where an interrupted run went on;
            `power`*: a dict with `watts` and `what`, the most that the hardware takes; None where it doesn't say;
            `history`*: what was logged, the library's `log_history`;
            `results`: one dict a figure, with `dataset`, `name`, `value`, `interval` and `signature`;
            `samples`: one dict a sentence, with `source`, `target` and `translation`;
            `versions`: package name to version;
            `weights`*: the updates after which the model's weights were; of several they are the mean;
            `about`*: what only a person knows: `license`, `author`, `data_origin`;
            `repo_id`: the repository on the Hub that the card is for, or a folder's name.
        has_curve: whether the training curve is beside the card.
    """
    task = facts.get("task", "translation")
    languages = list(dict.fromkeys(code for code in (facts["source_lang"], facts["target_lang"]) if code))
    tag, what, usage = KINDS[task]
    about, base = facts.get("about", {}), facts.get("init_from") or ""
    name = facts["repo_id"]
    data = ModelCardData(
        model_name=name.rpartition("/")[2],
        language=[code for code in languages if LANGUAGE.fullmatch(code)] or None,
        license=about.get("license", "unknown"),
        library_name="transformers",
        pipeline_tag=tag,
        base_model=base if "/" in base else None,  # a folder's name means nothing on the Hub
        tags=["vanilla-transformer", tag],
        eval_results=[
            EvalResult(
                task_type=tag,
                dataset_type=result["dataset"],
                dataset_name=result["dataset"],
                metric_type=result["name"].lower(),
                metric_name=f"{result['name']} ({result['signature']})",
                metric_value=round(result["value"], 2),
            )
            for result in facts["results"]
        ]
        or None,
    )
    template = (importlib.resources.files(__package__) / "template.md").read_text(encoding="utf-8")
    example = repr(facts["samples"][0]["source"] if facts["samples"] else "...")  # as Python writes it
    texts = {
        "name": name,
        "what": what.format(direction=" to ".join(languages) if len(languages) == 2 else "unknown languages"),
        "usage": usage.format(name=name, example=example),
        "usage_alone": usage.replace('"{name}")', '"{name}", trust_remote_code=True)').format(
            name=name, example=example
        ),
        "curve": CURVE if has_curve else None,
        "unit": _unit(facts),
        "weights": _weights(facts.get("weights") or []),
        "last": _last_losses(facts.get("history", [])),
        "init_from": _shown(facts.get("init_from") or facts["settings"].get("init_from")),
        "duration": _duration(facts),
        "energy": _energy(facts),
        "hyperparameters": {
            key: _shown(value)
            for key, value in {**facts.get("hyperparameters", {}), **facts["settings"]}.items()
            if not key.endswith("_dir")  # on the machine that trained, which says nothing to a reader
        },
        "about": about,
        "plain": _plain,
    }
    return str(ModelCard.from_template(data, template_str=template, **{**facts, **texts}))


def is_made_of(facts: dict[str, Any], text: str) -> bool:
    """Whether a card is the one that `write_card` makes of these facts, whatever repository it names."""
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    return title is not None and card_text({**facts, "repo_id": title[1]}, f"]({CURVE})" in text) == text


def _plain(text: str) -> str:
    """The first 300 characters of a text, on one line, so that Markdown and HTML show them as they are."""
    text = " ".join(text.split())
    text = text if len(text) <= 300 else f"{text[:297]}..."
    return re.sub(r"[\\`*|]", r"\\\g<0>", text.replace("&", "&amp;").replace("<", "&lt;"))


def _unit(facts: dict[str, Any]) -> str:
    """What a loss is a mean over."""
    return "example" if "classification" in facts.get("task", "translation") else "token"


def _shown(value: Any) -> Any:
    """A setting as a reader is to see it: of a path on the machine that trained, the name."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _duration(facts: dict[str, Any]) -> str:
    """Updates and time, as far as they are known."""
    updates, start = facts["updates"], facts.get("resumed_at")
    if updates is None:
        return f"unknown updates, in {_time(facts['seconds'])}"
    if start:
        return (
            f"{updates:,} updates. The run was interrupted: those after update {start:,} took "
            f"{_time(facts['seconds'])}, and how long the ones before took is unknown"
        )
    return f"{updates:,} updates, in {_time(facts['seconds'])}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} second{'s' * (round(seconds) != 1)}"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _energy(facts: dict[str, Any]) -> str:
    """An upper estimate, or that there is none."""
    power = facts.get("power")
    if not power:
        return "unknown: this machine doesn't report its power"
    kilowatt_hours = Decimal(f"{power['watts'] * facts['seconds'] / 3.6e6:.2g}")
    part = " Only the time above is counted." if facts.get("resumed_at") else ""
    return (
        f"at most {kilowatt_hours:,f} kWh, an estimate: {power['what']}, {power['watts']:g} W, for the whole time. "
        f"What else the machine takes, and cooling, isn't counted.{part}"
    )


def _weights(updates: list[int]) -> str:
    """Of which updates the finished model is; "" where that isn't known."""
    *others, last = (f"{update:,}" for update in updates) if updates else ("",)
    return (
        f"the mean of those after updates {', '.join(others)} and {last}" if others else last and f"after update {last}"
    )


def _last_losses(history: list[dict[str, Any]]) -> str:
    """The last plain losses, in words; "" where none was logged."""
    found = {}
    for name, key in (("training", "nll"), ("validation", "eval_nll")):
        values = [(entry["step"], entry[key]) for entry in history if key in entry]
        if values:
            found[name] = f"{name} {values[-1][1]:.3f} (update {values[-1][0]:,})"
    return ", ".join(found.values())


__all__ = ["write_card"]
