"""What every trainer here does the paper's way: the schedule, and an end on Ctrl-C that leaves a checkpoint."""

from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import SchedulerType

from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.interruption import CheckpointOnInterrupt
from modeling_vanilla.training.schedule import inverse_sqrt_schedule, noam_peak


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

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self.args.lr_scheduler_type != SchedulerType.INVERSE_SQRT:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:  # type: ignore[has-type]
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = inverse_sqrt_schedule(optimizer or self.optimizer, warmup_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

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
