"""Writes a trained model's README.md from what its run recorded; what isn't known is said to be unknown."""

import importlib.resources
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

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


def write_card(folder: Path, facts: dict[str, Any]) -> Path:
    """
    Writes `folder/README.md`.

    Args:
        folder: the finished model's.
        facts: what the run recorded:
            `task`: a key of `KINDS`, translation unless given;
            `source_lang`, `target_lang`: codes, or None;
            `data`: where the data came from, one line;
            `pairs`: what the filters kept and dropped, one line;
            `parameters`: their exact number;
            `config`: the fields of the model's config that describe its shape, name to value;
            `settings`: the recipe, name to value;
            `updates`, `seconds`, `hardware`: how long training took, and where;
            `results`: one dict a figure, with `dataset`, `name`, `value`, `interval` and `signature`;
            `samples`: one dict a sentence, with `source`, `target` and `translation`;
            `versions`: package name to version.

    Returns:
        the file.
    """
    languages = list(dict.fromkeys(code for code in (facts["source_lang"], facts["target_lang"]) if code))
    tag, what, usage = KINDS[facts.get("task", "translation")]
    data = ModelCardData(
        model_name=folder.resolve().name,
        language=languages or None,
        library_name="transformers",
        pipeline_tag=tag,
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
    direction = " to ".join(languages) if len(languages) == 2 else "unknown languages"
    example = repr(facts["samples"][0]["source"] if facts["samples"] else "...")  # as Python writes it
    texts = {
        "name": data.model_name,
        "what": what.format(direction=direction),
        "usage": usage.format(name=data.model_name, example=example),
    }
    card = ModelCard.from_template(data, template_str=template, **texts, **facts)
    path = folder / "README.md"
    card.save(path)
    return path


__all__ = ["write_card"]
