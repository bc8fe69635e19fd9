"""Warnings while a run goes on: what its owner would want to know before the night is over."""

import logging
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from transformers import TrainerCallback, TrainingArguments

logger = logging.getLogger(__name__)

LEARNT = 0.95  # of the first loss: above, nothing was learnt
NORM_RANGE, ENOUGH_LOGS = 10.0, 5  # a norm of so many times the median of the logs before, once there are so many
WAITING, UPDATES = 0.1, 50  # a share of the time that is spent waiting for batches, over so many updates
PADDING = 0.3
ODD = 0.2  # a share of validation outputs that are empty, or repeat themselves
REPEATS = 4
WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")  # of the library's schedules


def loss_and_norm(logs: dict[str, Any]) -> tuple[float | None, float | None]:
    """What a log says of the training loss and of the gradient's norm, if that is finite."""
    norm = logs.get("grad_norm")
    return logs.get("nll", logs.get("loss")), norm if norm is not None and math.isfinite(norm) else None


def long_warmup(args: TrainingArguments, updates: int) -> str | None:
    """What is to be said of a warm-up that doesn't end before the run does, whose updates are so many."""
    warmup, peak = args.get_warmup_steps(updates), args.learning_rate
    if args.lr_scheduler_type in WITHOUT_WARMUP or warmup < updates:
        return None
    longer = "max_steps" if args.max_steps > 0 else "num_train_epochs"
    return (
        f"the warm-up of {warmup:,} updates takes all of the run's {updates:,}: the rate gets to about "
        f"{peak * updates / warmup:.2g} of {peak:.2g}; lower warmup_steps, or raise {longer}"
    )


class Watch(TrainerCallback):
    """Warns, once each, of too long a warm-up, a loss flat after it, a gradient norm out of range, a slow loader."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.norms: list[float] = []
        self.said: set[str] = set()
        self.ended: float | None = None  # when the last update did
        self.waited = self.worked = 0.0
        self.updates = 0
        self.began = 0.0

    def warn(self, what: str, text: str, *values: Any) -> None:
        if what not in self.said:
            self.said.add(what)
            logger.warning(text, *values)

    def on_train_begin(self, args, state, control, **kwargs):
        if text := long_warmup(args, state.max_steps):
            self.warn("warmup", text)
        self.first, self.norms = None, []
        for logs in state.log_history:  # of a run that is resumed
            loss, norm = loss_and_norm(logs)
            self.first = loss if self.first is None else self.first
            self.norms += [] if norm is None else [norm]

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        loss, norm = loss_and_norm(logs or {})
        if loss is not None and not getattr(model, "name_or_path", ""):  # a trained model, loaded, may be at its best
            self.first = loss if self.first is None else self.first
            warmup = args.get_warmup_steps(state.max_steps)
            if state.global_step >= max(2 * warmup, ENOUGH_LOGS) and loss > LEARNT * self.first:
                self.warn(
                    "flat",
                    "the loss is flat: %.2f at update %s, long after warm-up, and %.2f at first; "
                    "lower learning_rate, and run `vanilla doctor`",
                    loss, state.global_step, self.first,
                )  # fmt: skip
        if norm is not None:
            if len(self.norms) >= ENOUGH_LOGS and norm > NORM_RANGE * statistics.median(self.norms):
                self.warn(
                    "norm",
                    "the gradient's norm is %.3g at update %s, and was %.3g before; lower learning_rate, or set "
                    "max_grad_norm",
                    norm, state.global_step, statistics.median(self.norms),
                )  # fmt: skip
            self.norms.append(norm)

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.perf_counter()
        if self.ended is not None:
            self.waited += self.began - self.ended

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self.worked += now - self.began
        # What follows is logging, evaluating and saving, where that is due; not waiting.
        self.ended = None if control.should_log or control.should_evaluate or control.should_save else now
        self.updates += 1
        if self.updates == UPDATES:
            share = self.waited / (self.waited + self.worked)
            if share > WAITING:
                self.warn(
                    "waiting",
                    "%.0f %% of the time is spent waiting for batches; raise dataloader_num_workers",
                    100 * share,
                )
            self.updates, self.waited, self.worked = 0, 0.0, 0.0


def check_padding(share: float) -> None:
    """Warns of batches that are padding to a large part."""
    if share > PADDING:
        logger.warning("%.0f %% of the batches' positions are padding; raise max_tokens", 100 * share)


def check_outputs(predictions: Iterable[Sequence[int]], special: Iterable[int]) -> None:
    """Warns of validation outputs that are empty, or say a token four times in a row."""
    special = set(special)
    rows = [[token for token in row if token not in special] for row in predictions]
    empty = sum(not row for row in rows) / max(len(rows), 1)
    repeating = sum(_repeats(row) for row in rows) / max(len(rows), 1)
    if empty > ODD:
        logger.warning("%.0f %% of the validation set's translations are empty", 100 * empty)
    if repeating > ODD:
        logger.warning("%.0f %% of the validation set's translations repeat a token %s times", 100 * repeating, REPEATS)


def _repeats(row: Sequence[int]) -> bool:
    run = 1
    for before, token in pairwise(row):
        run = run + 1 if token == before else 1
        if run == REPEATS:
            return True
    return False


__all__ = ["WITHOUT_WARMUP", "Watch", "check_outputs", "check_padding", "long_warmup"]
