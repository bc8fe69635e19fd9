"""Ctrl-C and SIGTERM while training: a checkpoint first, then the end."""

import signal
import threading
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(KeyboardInterrupt):
    """Raised once the checkpoint is written that a repeated command goes on from."""

    def __init__(self, step: int):
        super().__init__(f"interrupted at step {step}")
        self.step = step


class CheckpointOnInterrupt(TrainerCallback):
    """
    Ends the run after the update at hand, with a checkpoint; after an epoch's last, once it is logged and evaluated as
    ever. A second Ctrl-C ends it at once.

    Args:
        accelerator: through which the processes agree to stop at the same update.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.requested = False  # of this process
        self.stopping = False  # agreed on by all
        self.between = False  # and no checkpoint was due
        self._previous: dict[signal.Signals, Any] = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def on_train_begin(self, args, state, control, **kwargs):
        self.requested = self.stopping = self.between = False
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def on_step_end(self, args, state, control, **kwargs):
        self.stopping = self.requested
        if self.accelerator.num_processes > 1:
            flag = torch.tensor([int(self.requested)], device=self.accelerator.device)
            self.stopping = bool(self.accelerator.reduce(flag, reduction="sum").item())
        if self.stopping:
            last = float(state.epoch).is_integer()
            due = control.should_save or (args.save_strategy == SaveStrategy.EPOCH and last)
            control.should_save, self.between = not last, not due

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or self.stopping

    def on_save(self, args, state, control, **kwargs):
        if self.stopping:
            raise TrainingInterrupted(state.global_step)

    def restore(self) -> None:
        """Puts back the handlers that were there before training."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


__all__ = ["CheckpointOnInterrupt", "TrainingInterrupted"]
