"""What every trainer here does the paper's way: the schedule, and an end on Ctrl-C that leaves a checkpoint."""

import json
import logging
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import SaveStrategy, SchedulerType

from modeling_vanilla.interop.hub import make_repository, push
from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.averaging import (
    average_weights,
    best_checkpoints,
    keep_best,
    last_checkpoints,
    metric_by_step,
    ranked,
)
from modeling_vanilla.training.bad_updates import FOLDER, BadUpdate, GradientWatch, likely_cause, save_update
from modeling_vanilla.training.checkpoints import (
    ASIDE,
    BETWEEN,
    STATE,
    checkpoints,
    is_due,
    last_checkpoint,
    publish,
    remove,
    seal,
    step_of,
)
from modeling_vanilla.training.hardware import keep_kernels
from modeling_vanilla.training.interruption import CheckpointOnInterrupt
from modeling_vanilla.training.output import RESULTS
from modeling_vanilla.training.schedule import inverse_sqrt_schedule, noam_peak
from modeling_vanilla.training.watch import Watch

logger = logging.getLogger(__name__)


class EpochLengthGroups(LengthGroupedSampler):
    """The library's, whose order depends on seed and epoch alone: a resumed run has the undisturbed run's."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        self.generator.manual_seed(self.seed + self.epoch)
        return super().__iter__()


class PaperTrainer(Trainer):
    """The library's Trainer with the paper's schedule (section 5.3), which resumes at the end, and heeds Ctrl-C."""

    args: VanillaTrainingArguments

    def __init__(self, model: Any = None, args: VanillaTrainingArguments | None = None, **kwargs: Any):
        args = VanillaTrainingArguments("tmp_trainer") if args is None else args  # the library's default
        if not isinstance(args, VanillaTrainingArguments):
            raise ValueError(f"args: give {VanillaTrainingArguments.__name__}, not {type(args).__name__}")
        super().__init__(model=model, args=args, **kwargs)
        if self.args.bf16 and self.args.device.type == "cpu" and not self.args.bpe_dropout:  # which repeats no shape
            keep_kernels()
        self.model.config.use_cache = True  # Trainer turned it off, and would save that
        if self.args.learning_rate is None:
            if self.args.warmup_steps < 1 and self.args.max_steps < 0:
                raise ValueError(
                    f"warmup_steps={self.args.warmup_steps} is a share of a number of updates that isn't known yet, so "
                    "the paper's peak rate isn't either: give learning_rate, max_steps, or warmup_steps of at least 1"
                )
            warmup_steps = self.args.get_warmup_steps(self.args.max_steps)
            self.args.learning_rate = noam_peak(self.model.config.d_model, warmup_steps)
        if self.args.warmup_init_lr is not None and self.args.warmup_init_lr > self.args.learning_rate:
            raise ValueError(
                f"warmup_init_lr={self.args.warmup_init_lr}: is above the peak, learning_rate={self.args.learning_rate}"
            )
        if self.is_fsdp_enabled and (self.args.average_last or self.args.average_best):
            raise ValueError("average_last, average_best: not under FSDP; run `vanilla average` on the checkpoints")
        if self.args.fp16 and self.args.device.type == "cpu":
            raise ValueError("fp16: is for GPUs, and on a CPU changes nothing: use bf16, or float32")
        self._is_saving = False
        self._watch = GradientWatch(self.args.explosion_ratio, self.args.max_grad_norm)
        self._update: list[dict[str, Any]] = []  # the batches of the update at hand
        self.interruption = CheckpointOnInterrupt(self.accelerator)
        self.add_callback(self.interruption)
        self.add_callback(Watch())
        self._patience: EarlyStoppingCallback | None = None
        if self.args.early_stopping_patience:
            self._patience = EarlyStoppingCallback(self.args.early_stopping_patience)
            self.add_callback(self._patience)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self.args.lr_scheduler_type != SchedulerType.INVERSE_SQRT:
            try:
                return super().create_scheduler(num_training_steps, optimizer)
            except TypeError as error:
                raise ValueError(f"lr_scheduler_kwargs={self.args.lr_scheduler_kwargs}: {error}") from error
        if self.lr_scheduler is None:  # type: ignore[has-type]
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            start, peak = self.args.warmup_init_lr, self.args.learning_rate
            self.lr_scheduler = inverse_sqrt_schedule(
                optimizer or self.optimizer, warmup_steps, None if start is None or not peak else start / peak
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The library's; but settings that were changed hold, where it would take the checkpoint's."""
        if self.is_deepspeed_enabled:  # which loads them itself, with the model
            return super()._load_optimizer_and_scheduler(checkpoint)
        kept = {"initial_lr", "betas", "eps", "weight_decay"}
        mine = [{name: group[name] for name in kept & group.keys()} for group in self.optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        for group, settings in zip(self.optimizer.param_groups, mine, strict=True):
            group.update(settings)
        if isinstance(schedule := self.lr_scheduler, LambdaLR):  # its factors are of steps, and come with no checkpoint
            schedule.base_lrs = [group["initial_lr"] for group in self.optimizer.param_groups]
            both = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
            schedule._last_lr = [peak * factor(schedule.last_epoch) for peak, factor in both]
            for group, rate in zip(self.optimizer.param_groups, schedule._last_lr, strict=True):
                group["lr"] = rate

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(train_dataset)
        if type(sampler) is LengthGroupedSampler:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            sampler = EpochLengthGroups(sampler.batch_size, sampler.lengths, seed)
        return sampler

    def _get_output_dir(self, trial: Any) -> str:
        """The library's; while a checkpoint is being written, the place aside."""
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / ASIDE) if self._is_saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The library's, but whole or not at all; older checkpoints go when the new one is there."""
        folder, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        fault: Exception | None = None
        between = self.interruption.between
        best, self.state.best_global_step = self.state.best_global_step, None  # it would look for that one aside
        self._is_saving = True
        try:
            super()._save_checkpoint(model, trial)
            self._running_loss_file(folder / ASIDE / name).write_text(json.dumps(self._running_loss()))
            # A best one is due wherever it is found, which is after the interruption was heard.
            between &= self.args.save_strategy != SaveStrategy.BEST or best != self.state.global_step
            if between:
                (folder / ASIDE / name / BETWEEN).touch()
        except (OSError, SafetensorError, RuntimeError) as error:
            fault = error
        finally:
            self._is_saving = False
            self.state.best_global_step = best
        before = [path for path in checkpoints(folder) if is_due(path)]  # seen by all, until the first removes some
        if self._any_process(fault is not None):  # which is also where the processes wait for each other
            return self._not_saved(folder, name, fault)
        if self.args.metric_for_best_model and not between:  # the best of what is saved, which may be less than all
            values = metric_by_step(self.state.log_history, self.args.metric_for_best_model)
            if best and self.state.best_metric is not None:  # also where an `evaluate` of somebody's own logs nothing
                values.setdefault(best, self.state.best_metric)
            scored = [path for path in {*before, folder / name} if step_of(path) in values]
            if scored:
                self.state.best_model_checkpoint = str(ranked(scored, values, self.args.greater_is_better)[0])
        if self.args.should_save:
            try:
                self._finish_checkpoint(folder, name)
            except OSError as error:
                fault = error
        if self._any_process(fault is not None):
            return self._not_saved(folder, name, fault)
        return None

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """The library's; but what FSDP gathers holds a copy of a shared matrix for each of its names: one is enough."""
        for copy, original in self.accelerator.unwrap_model(self.model).all_tied_weights_keys.items():
            if state_dict and original in state_dict and torch.equal(state_dict[copy], state_dict[original]):
                del state_dict[copy]
        super()._save(output_dir, state_dict=state_dict)

    def _finish_checkpoint(self, folder: Path, name: str) -> None:
        aside = folder / ASIDE
        self.state.save_to_json(str(aside / name / STATE))
        seal(aside / name)
        publish(aside / name, folder / name)
        aside.rmdir()
        remove(path for path in checkpoints(folder) if path.name != name and not is_due(path))
        if self.args.keep_best:
            keep_best(folder, self.args, self.state.log_history)
        elif (limit := self.args.save_total_limit or 0) > 0:
            best_one = self.state.best_model_checkpoint if self.args.load_best_model_at_end else None
            kept, due = {Path(best_one or "").name, name}, [path for path in checkpoints(folder) if is_due(path)]
            older = [path for path in due if path.name not in kept]
            remove(older[: max(0, len(due) - limit)])

    def _any_process(self, mine: bool) -> bool:
        """Whether it is so on any process."""
        if self.accelerator.num_processes == 1:
            return mine
        flag = torch.tensor([int(mine)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, reduction="sum").item())

    def _not_saved(self, folder: Path, name: str, fault: Exception | None) -> None:
        """Says so; then goes on, or ends the run, as `on_save_error` says; an interrupted run ends in any case."""
        shutil.rmtree(folder / ASIDE, ignore_errors=True)
        why = str(getattr(fault, "strerror", None) or fault or "another process failed").splitlines()[0]
        last = last_checkpoint(folder)
        message = f"{folder / name}: could not be written: {why}; " + (
            f"{last.name} is the last sound checkpoint" if last else "there is no checkpoint yet"
        )
        if self.args.on_save_error == "continue" and not self.interruption.stopping:
            logger.error("%s; training goes on", message)
            return
        raise ValueError(f"{message}: mend the cause, and the same command goes on from there")

    # Updates that would spoil the model ----------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        self._update.append(inputs)
        return super().training_step(model, inputs, *args, **kwargs)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The library's, just before an update is made: the same on all processes."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        batches, self._update = self._update, []
        scaler = self.accelerator.scaler
        if scaler is not None and norm is not None and not math.isfinite(norm) and scaler.get_scale() > 1:
            self._left_out()
            return norm  # float16's usual overflow: the scaler leaves the update out, and halves its scale
        fault = None if norm is None else self._watch.fault(float(norm))
        if fault:
            self._bad_update(model, batches, fault)
        return norm

    def _left_out(self) -> None:
        """Called where the update at hand won't be made."""

    def _bad_update(self, model: Any, batches: list[dict[str, Any]], fault: str) -> None:
        self._left_out()
        step, plain = self.state.global_step + 1, self.accelerator.unwrap_model(model)
        folder, name = Path(self.args.output_dir) / FOLDER, f"update-{step}-process-{self.args.process_index}"
        rows = save_update(folder, name, batches, plain, self.processing_class)
        cause = likely_cause(plain, rows, self.args, self._get_learning_rate())
        message = f"update {step}: {fault}; likely cause: {cause}; its sentences are in {folder / name}.jsonl"
        if self.args.on_bad_update == "stop":
            raise BadUpdate(message)
        logger.error("%s; skipped", message)
        model.zero_grad()  # to None, which the optimizer passes over

    def _load_best_model(self) -> None:
        if self.state.best_model_checkpoint:  # as this folder is called now, which may have been moved
            name = Path(self.state.best_model_checkpoint).name
            self.state.best_model_checkpoint = str(Path(self.args.output_dir) / name)
        super()._load_best_model()

    # What the library forgets when a run is resumed: the losses since the last log, and the patience that is used up.

    def _running_loss(self) -> dict[str, Any]:
        return {
            "loss": self._tr_loss.item(),
            "total": self._total_loss_scalar,
            "logged": self._globalstep_last_logged,
            "start": self._loss_start,
            "norms": list(self._watch.norms),
            "first_norm": self._watch.first,
            "patience": self._patience.early_stopping_patience_counter if self._patience else 0,
        }

    def _restore_running_loss(self, saved: dict[str, Any]) -> None:
        self._tr_loss.fill_(saved["loss"])
        self._total_loss_scalar, self._globalstep_last_logged = saved["total"], int(saved["logged"])
        self._loss_start = int(saved["start"])
        self._watch.norms.extend(saved["norms"])
        self._watch.first = saved.get("first_norm")
        if self._patience:
            self._patience.early_stopping_patience_counter = saved["patience"]
            if saved["patience"] >= self._patience.early_stopping_patience:  # it had just run out
                self.control.should_training_stop = True

    def _running_loss_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"running_loss_{self.args.process_index}.json"

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "train_loss" in logs:
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step - self._loss_start, 0.001)
        super().log(logs, *args, **kwargs)

    def average(self) -> list[Path]:
        """Gives the model the mean of the last or best checkpoints' weights, where the arguments ask; returns those."""
        args = self.args
        if args.average_last:
            checkpoints = last_checkpoints(args.output_dir, args.average_last)
        elif args.average_best:
            checkpoints = best_checkpoints(
                args.output_dir, args.average_best, args.metric_for_best_model, args.greater_is_better
            )
        else:
            return []
        logger.info("averaging %s", ", ".join(path.name for path in checkpoints))
        self.accelerator.unwrap_model(self.model).load_state_dict(average_weights(checkpoints), strict=False)
        self.remove_callback(EarlyStoppingCallback)
        found = self.evaluate(metric_key_prefix="average")
        name = "nll" if "average_nll" in found else "loss"
        single = [entry[f"eval_{name}"] for entry in self.state.log_history if f"eval_{name}" in entry]
        if single and found[f"average_{name}"] > min(single):
            logger.warning(
                "the mean's validation %s is %.3f, but a single checkpoint's was %.3f: average fewer, or none",
                name, found[f"average_{name}"], min(single),
            )  # fmt: skip
        return checkpoints

    # The Hub ---------------------------------------------------------------------------------------------------------

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        if self.is_world_process_zero():
            name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
            private = self.args.hub_private_repo if private is None else private
            self.hub_model_id = make_repository(name, private=private, token=token or self.args.hub_token)
            self.push_in_progress = None

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The library's, which takes a model from scratch for a fine-tuned one whose name is empty, but no folder."""
        config = self.model.config
        name, config._name_or_path = config._name_or_path, config._name_or_path or "."
        super().create_model_card(*args, **kwargs)
        config._name_or_path = name

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Nothing: checkpoints aren't shared."""

    def push_to_hub(
        self, commit_message: str = "End of training", blocking: bool = True, token: str | None = None,
        revision: str | None = None, private: bool | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """
        The library's, of what a repository is to hold: the model with its code, its tokenizer and its card; no pickled
        arguments (`training_args.bin`), checkpoints or logs.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)  # on all processes
        if not self.is_world_process_zero():
            return None
        folder = Path(self.args.output_dir)
        if not (folder / RESULTS).is_file():  # else it has the card of its run
            self.create_model_card(**kwargs)
        send = partial(
            push, folder, self.hub_model_id, token=token or self.args.hub_token,
            revision=revision or self.args.hub_revision, commit_message=commit_message,
        )  # fmt: skip
        return send() if blocking else HfApi().run_as_future(send)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        tied = self.accelerator.unwrap_model(self.model).all_tied_weights_keys  # saved once, so not missing
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def _inner_training_loop(self, *args: Any, resume_from_checkpoint: Any = None, **kwargs: Any):
        self._resumed = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        self._loss_start = 0
        try:
            return super()._inner_training_loop(*args, resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.interruption.restore()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self._resumed:
            file, self._resumed, self._loss_start = self._running_loss_file(self._resumed), None, self.state.global_step
            if file.is_file():  # not on more processes than there were
                self._restore_running_loss(json.loads(file.read_text(encoding="utf-8")))
        if self.control.should_training_stop:
            return
        if self.state.global_step >= self.state.max_steps:  # resumed at the end: the library would do one more update
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)


__all__ = ["PaperTrainer"]
