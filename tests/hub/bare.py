"""
What somebody without this package does with a repository of ours: load it, translate, fine-tune it with the library's
own trainer, save, reload, translate. Imports nothing but torch, transformers and what they bring. Prints JSON.

    python bare.py me/en-de tuned "A man rides a bike." --also AutoModel=me/en-de AutoModelForCausalLM=me/lm
"""

import argparse
import hashlib
import importlib.util
import json
import sys
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer


def load(source: str, **how: str) -> tuple[Any, Any]:
    """Model and tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=True, **how)
    return AutoModelForSeq2SeqLM.from_pretrained(source, trust_remote_code=True, **how), tokenizer


def translate(model: Any, tokenizer: Any, sentences: list[str]) -> list[str]:
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    return tokenizer.batch_decode(model.generate(**batch, max_length=64), skip_special_tokens=True)


def digest(model: torch.nn.Module) -> str:
    """Of all weights and their names."""
    state = sorted(model.state_dict().items())
    return hashlib.sha256(b"".join(name.encode() + weight.numpy().tobytes() for name, weight in state)).hexdigest()


def fine_tune(model: Any, tokenizer: Any, sentences: list[str], folder: str) -> None:
    """Three updates towards saying the source itself, backwards."""
    targets = [" ".join(reversed(sentence.split())) for sentence in sentences]
    arguments = transformers.Seq2SeqTrainingArguments(
        folder, max_steps=3, learning_rate=1e-2, label_smoothing_factor=0.1, use_cpu=True, save_strategy="no",
        report_to="none", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = transformers.Seq2SeqTrainer(
        model=model,
        args=arguments,
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=[dict(tokenizer(s, text_target=t)) for s, t in zip(sentences, targets, strict=True)],
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(folder)
    model.eval()


def main() -> None:
    if importlib.util.find_spec("modeling_vanilla"):
        sys.exit("modeling_vanilla is there: this is to run without it")
    parser = argparse.ArgumentParser()
    parser.add_argument("repository")
    parser.add_argument("folder", help="where the fine-tuned model goes")
    parser.add_argument("sentences", nargs="+")
    parser.add_argument("--also", nargs="*", default=[], metavar="AUTO_CLASS=REPOSITORY", help="load these as well")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(1)
    results: dict[str, Any] = {
        "config": AutoConfig.from_pretrained(args.repository, trust_remote_code=True, revision="main").to_dict()
    }
    for which in args.also:
        name, _, repository = which.partition("=")
        loaded = getattr(transformers, name).from_pretrained(repository, trust_remote_code=True, revision="main")
        results[which] = type(loaded).__name__, digest(loaded)
    model, tokenizer = load(args.repository, revision="main")
    results["downloaded"] = translate(model, tokenizer, args.sentences)
    fine_tune(model, tokenizer, args.sentences, args.folder)
    results["fine-tuned"] = translate(model, tokenizer, args.sentences)
    results["reloaded"] = translate(*load(args.folder), args.sentences)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
