"""All checks of a recipe, one after another."""

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modeling_vanilla.data import DataArguments, load_corpus
from modeling_vanilla.data.images import load_images
from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.doctor.batch import check_labels, check_masks, check_overfitting, side_by_side
from modeling_vanilla.training.doctor.corpus import check_corpus, check_examples
from modeling_vanilla.training.doctor.cost import check_cost, check_rate, make_optimizer
from modeling_vanilla.training.doctor.finding import Finding
from modeling_vanilla.training.jobs import JOBS
from modeling_vanilla.training.recipe import Recipe
from modeling_vanilla.training.run import build_model, build_trainer

MOST_PAIRS = 200_000  # of the corpus that is looked at
# Nothing is evaluated, saved or shared.
QUIET = {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False, "push_to_hub": False}
QUIET |= dict.fromkeys(("average_last", "average_best", "keep_best", "early_stopping_patience"), 0)


def diagnose(recipe: Recipe, say: Callable[[str], None] = print) -> list[Finding]:
    """
    Runs all checks of a recipe, each finding being said as it is there. The output folder isn't touched.

    Raises:
        ValueError: for what `vanilla train` would refuse as well.
    """
    findings: list[Finding] = []

    def note(found: Iterator[Finding]) -> None:
        for finding in found:
            findings.append(finding)
            say(str(finding))

    with tempfile.TemporaryDirectory() as folder:
        most = min(recipe.data.max_train_samples or MOST_PAIRS, MOST_PAIRS)
        changes: dict[str, Any] = {"output_dir": folder, "disable_tqdm": True} | QUIET
        data = replace(recipe.data, max_train_samples=most)
        training = replace(recipe.training, **changes)
        job: Any = JOBS[recipe.data.task](replace(recipe, data=data, training=training), Path(folder))
        job.prepare()
        whole = whole_size(job, recipe.data)
        note(check_examples(job, whole) if hasattr(job, "examples") else check_corpus(job, whole))
        torch.manual_seed(recipe.training.seed)
        model = build_model(job)
        trainer = build_trainer(job, model)
        make_optimizer(trainer, copy.deepcopy(model))  # what is refused is refused now
        backend = model.config._attn_implementation
        if "flash" in backend:  # in half precision alone, which is too coarse to compare
            model.set_attn_implementation("sdpa")
        loader = trainer.get_train_dataloader()
        updates = count_updates(training, len(loader) * whole / len(job.corpus["train"]))
        batch = next(iter(loader))
        for line in side_by_side(model, job, batch):
            say(line)
        note(check_labels(model, batch))
        note(check_masks(model, batch))
        note(check_overfitting(model, batch))
        note(check_rate(model, trainer, loader, updates))
        if "flash" in backend:
            model.set_attn_implementation(backend)
        note(check_cost(model, trainer, loader, updates))
    return findings


def whole_size(job: Any, data: DataArguments) -> int:
    """How many examples the run will have to train on, of which the job may hold the first MOST_PAIRS alone."""
    size = len(job.corpus["train"])
    if size < MOST_PAIRS:
        return size
    corpus = load_images(data)[0] if data.task == "image_classification" else load_corpus(data)
    return len(corpus["train"])


def count_updates(args: VanillaTrainingArguments, batches: float) -> int:
    """The updates of the run, whose epochs have so many batches."""
    if args.max_steps > 0:
        return args.max_steps
    return math.ceil(args.num_train_epochs * max(math.ceil(batches / args.gradient_accumulation_steps), 1))
