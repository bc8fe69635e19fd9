"""What every trainer here does the paper's way: the schedule, and an end on Ctrl-C that leaves a checkpoint."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, Trainer
from transformers.trainer_utils import SchedulerType

from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.averaging import average_weights, best_checkpoints, keep_best, last_checkpoints
from modeling_vanilla.training.interruption import CheckpointOnInterrupt
from modeling_vanilla.training.schedule import inverse_sqrt_schedule, noam_peak

logger = logging.getLogger(__name__)


class PaperTrainer(Trainer):
    """The library's Trainer with the paper's schedule (section 5.3), which resumes at the end, and heeds Ctrl-C."""

    args: VanillaTrainingArguments

    def __init__(self, model: Any = None, args: VanillaTrainingArguments | None = None, **kwargs: Any):
        super().__init__(model=model, args=args, **kwargs)
        self.model.config.use_cache = True  # Trainer turned it off, and would save that
        if self.args.learning_rate is None:
            if self.args.warmup_steps < 1 and self.args.max_steps < 0:
                raise ValueError(
                    f"warmup_steps={self.args.warmup_steps} is a share of a number of updates that isn't known yet, so "
                    "the paper's peak rate isn't either: give learning_rate, max_steps, or warmup_steps of at least 1"
                )
            warmup_steps = self.args.get_warmup_steps(self.args.max_steps)
            self.args.learning_rate = noam_peak(self.model.config.d_model, warmup_steps)
        self.interruption = CheckpointOnInterrupt(self.accelerator)
        self.add_callback(self.interruption)
        if self.args.early_stopping_patience:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self.args.lr_scheduler_type != SchedulerType.INVERSE_SQRT:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:  # type: ignore[has-type]
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            start, peak = self.args.warmup_init_lr, self.args.learning_rate
            self.lr_scheduler = inverse_sqrt_schedule(
                optimizer or self.optimizer, warmup_steps, None if start is None or not peak else start / peak
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        if self.args.keep_best and self.args.should_save:
            keep_best(Path(self.args.output_dir), self.args)

    def average(self) -> None:
        """Gives the model the mean of the last or best checkpoints' weights, where the arguments ask for it."""
        args = self.args
        if args.average_last:
            checkpoints = last_checkpoints(args.output_dir, args.average_last)
        elif args.average_best:
            checkpoints = best_checkpoints(
                args.output_dir, args.average_best, args.metric_for_best_model, args.greater_is_better
            )
        else:
            return
        logger.info("averaging %s", ", ".join(path.name for path in checkpoints))
        self.accelerator.unwrap_model(self.model).load_state_dict(average_weights(checkpoints), strict=False)
        self.remove_callback(EarlyStoppingCallback)
        self.evaluate(metric_key_prefix="average")

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        tied = self.accelerator.unwrap_model(self.model).all_tied_weights_keys  # saved once, so not missing
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def _inner_training_loop(self, *args: Any, **kwargs: Any):
        try:
            return super()._inner_training_loop(*args, **kwargs)
        finally:
            self.interruption.restore()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed at the end: the library would do one more update
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)


__all__ = ["PaperTrainer"]
