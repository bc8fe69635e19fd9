"""The main job: from data to a folder that anyone can load."""

import logging
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel, set_seed
from transformers.training_args import OptimizerNames

import modeling_vanilla
from modeling_vanilla.errors import first_line
from modeling_vanilla.interop.common import make_readable
from modeling_vanilla.interop.hub import push
from modeling_vanilla.training import hardware
from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.checkpoints import step_of
from modeling_vanilla.training.jobs import JOBS
from modeling_vanilla.training.jobs.job import Job, RunResult
from modeling_vanilla.training.output import Begun, open_output_dir, unless_begun, write_results
from modeling_vanilla.training.recipe import Recipe, config_fields

logger = logging.getLogger(__name__)

# Of the library's arguments and ours: what a reader of the card wants to know though nobody gave it.
HYPERPARAMETERS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "gradient_accumulation_steps", "max_grad_norm", "adam_beta1",
    "adam_beta2", "adam_epsilon", "weight_decay", "label_smoothing_factor", "bf16", "fp16", "seed",
)  # fmt: skip


def run(recipe: Recipe) -> RunResult:
    """
    Trains a model as a recipe says, or goes on with the unfinished run that its output folder holds; then tests it
    and writes the finished model, its tokenizer or image processor, results and card into the folder's root.

    Raises:
        ValueError: for a mistake in the recipe, the data or the output folder, with the remedy.
        TrainingInterrupted: after Ctrl-C, once the checkpoint is written.
    """
    args = recipe.training
    if args.output_dir in (None, "", "trainer_output"):
        raise ValueError("no output_dir: say where the model is to go with --output_dir FOLDER")
    folder, source = Path(args.output_dir), recipe.model.init_from
    if source and Path(source).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"init_from={source!r}: lies in the output folder: choose another --output_dir")
    recipe.vanilla_config(vocab_size=recipe.model.vocab_size)  # a mistake there is known before the data is read
    set_seed(args.seed)
    checkpoint = _open_output_dir(recipe, folder)
    with unless_begun(folder if args.process_index == 0 else None):
        job: Job = JOBS[recipe.data.task](recipe, folder)
        with args.main_process_first(local=False, desc="the data"):
            job.prepare()
        logger.info("training data: %s", job.data_report())

        model = build_model(job)
        logger.info("model: %s, %s parameters", source or recipe.model.model, f"{model.num_parameters():,}")
        trainer = build_trainer(job, model)
        trainer.add_callback(Begun)
        if checkpoint:
            logger.info("going on from %s", checkpoint)
        start = time.monotonic()
        with optimizer_installed(args):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        seconds = time.monotonic() - start

    trainer.save_model(str(folder), _internal_call=True)  # on all processes: a sharded model is gathered
    averaged: list[Path] = []
    try:
        averaged = trainer.average()
    except ValueError as error:  # an early stop may leave too few, for instance
        logger.warning("not averaged: %s", error)
    if averaged:
        trainer.save_model(str(folder), _internal_call=True)  # which doesn't push: card and results are to come
    result = RunResult(folder, recipe.data.task)
    if trainer.is_world_process_zero():
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle
        job.processor.save_pretrained(folder)
        make_readable(folder)
    if trainer.interruption.requested:  # after the last update, when no more checkpoint was due
        raise KeyboardInterrupt(f"interrupted before the test sets were scored; the model is in {folder}")
    if trainer.is_world_process_zero():
        job.test(result)
        facts = _facts(recipe, job, trainer, seconds, result, checkpoint)
        facts["weights"] = _weights_of(trainer, averaged)
        from modeling_vanilla.model_card import write_card

        write_card(folder, facts)
        write_results(folder, facts)  # the last file: it says that the run is finished
        if args.push_to_hub:
            try:
                push(folder, trainer.hub_model_id, revision=args.hub_revision, token=args.hub_token)
            except ValueError as error:
                again = f"`vanilla push {folder} {trainer.hub_model_id}` does that alone"
                raise ValueError(f"the model in {folder} is finished, but not pushed: {error}; {again}") from error
    trainer.accelerator.wait_for_everyone()
    return result


def build_model(job: Job) -> PreTrainedModel:
    """The model to train, with the recipe's attention."""
    model, name = job.build(), job.recipe.model.attn_implementation
    if name:
        try:
            model.set_attn_implementation(name)
        except ImportError as error:
            raise ValueError(f"attn_implementation={name!r}: {first_line(error)}") from error
    return model


def build_trainer(job: Job, model: PreTrainedModel) -> Any:
    """The trainer, with the recipe's loggers."""
    try:
        return job.trainer(model)
    except RuntimeError as error:
        if "requires" not in str(error):
            raise
        named = f"report_to={job.recipe.training.report_to}"
        raise ValueError(f"{named}: {error}") from error  # a package that isn't installed


@contextmanager
def optimizer_installed(args: VanillaTrainingArguments) -> Iterator[None]:
    """Around what makes the optimizer, whose package may be missing."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"optim={OptimizerNames(args.optim).value}: {first_line(error)}") from error


def _open_output_dir(recipe: Recipe, folder: Path) -> Path | None:
    """The checkpoint to go on from: found, or the folder refused, by the first process for all."""
    outcome: list[Any] = [None, None]
    if recipe.training.process_index == 0:
        try:
            outcome[0] = open_output_dir(
                folder, recipe.settings, recipe.model.overwrite_output_dir, recipe.model.allow_changed_settings
            )
        except ValueError as error:
            outcome[1] = str(error)
    checkpoint, refusal = broadcast_object_list(outcome)
    if refusal:
        raise ValueError(refusal)
    return checkpoint


def _weights_of(trainer: Any, averaged: list[Path]) -> list[int]:
    """The updates after which the finished model's weights were: of several they are the mean."""
    state = trainer.state
    if averaged:
        return sorted(map(step_of, averaged))
    is_best = trainer.args.load_best_model_at_end and state.best_model_checkpoint
    return [step_of(Path(state.best_model_checkpoint)) if is_best else state.global_step]


def _facts(
    recipe: Recipe, job: Job, trainer: Any, seconds: float, result: RunResult, checkpoint: Path | None
) -> dict[str, Any]:
    """What the card and `results.json` say of the run."""
    data, device, processes = recipe.data, trainer.args.device, trainer.args.world_size
    config, arguments = trainer.model.config.to_dict(), trainer.args.to_dict()
    batch = "per_device_train_batch_size" if "classification" in data.task else "max_tokens"
    settings = {name: value for name, value in recipe.settings.items() if not name.endswith("_dir")}
    source = recipe.model.init_from
    if source:  # of a folder its name alone: where it lies is nobody's business
        source = settings["init_from"] = Path(source).resolve().name if Path(source).is_dir() else source
    return {
        "task": data.task,
        "init_from": source,
        "source_lang": data.source_lang,
        "target_lang": data.target_lang,
        "data": data.dataset_name or Path(data.data_dir or "unknown").name,
        "pairs": job.data_report(),
        "splits": job.sizes(),
        "parameters": trainer.model.num_parameters(),
        "config": {name: config[name] for name in ("vocab_size", *config_fields())},
        "settings": settings,
        "hyperparameters": {
            **{name: arguments[name] for name in (*HYPERPARAMETERS, batch)}, "max_length": data.max_length,
        },
        "updates": trainer.state.global_step,
        "seconds": round(seconds, 1),
        "resumed_at": int(checkpoint.name.rpartition("-")[2]) if checkpoint else None,
        "hardware": hardware.describe(device, processes),
        "power": hardware.power(device, processes),
        "results": result.results,
        "samples": result.samples,
        "history": trainer.state.log_history,
        "versions": {
            "vanilla-transformer": modeling_vanilla.__version__, "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "datasets", "tokenizers", "sacrebleu")},
        },
    }  # fmt: skip


__all__ = ["RunResult", "build_model", "build_trainer", "optimizer_installed", "run"]
