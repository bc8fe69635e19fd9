"""What a few updates say of the run: the learning rate that it stands, its time, and its memory."""

import copy
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from modeling_vanilla.training.doctor.finding import Finding
from modeling_vanilla.training.run import optimizer_installed
from modeling_vanilla.training.schedule import noam_peak
from modeling_vanilla.training.watch import WITHOUT_WARMUP, long_warmup

RATES = np.geomspace(1e-6, 1.0, 43)  # eight a decade, nearly
TRIAL_SECONDS = 20  # of updates that are timed: memory grows over the first dozens
TELLING = 0.25  # a share of the memory: where updates need less, their batch says little of larger ones


def make_optimizer(trainer: Any, model: PreTrainedModel) -> torch.optim.Optimizer:
    """The recipe's, for this model."""
    trainer.optimizer = None
    with optimizer_installed(trainer.args):
        return trainer.create_optimizer(model)


def check_rate(model: PreTrainedModel, trainer: Any, loader: DataLoader, updates: int) -> Iterator[Finding]:
    """
    Raises the rate from batch to batch until the loss leaves, which the recipe's peak is to lie below. The paper's peak
    belongs to a warm-up: without one there is nothing to compare. Tells of a warm-up that takes the whole run.
    """
    peak = trainer.args.learning_rate
    student = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(student.parameters(), betas=(0.9, trainer.args.adam_beta2))
    batches = _forever(loader)
    best, breaks = math.inf, None
    for rate in RATES:
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        batch = {name: value[:16] for name, value in next(batches).items() if isinstance(value, torch.Tensor)}
        outputs = student(**batch)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = float(outputs.loss.detach())
        best = min(best, loss)
        if not math.isfinite(loss) or loss > best + 3:
            breaks = float(rate)
            break
    text, low, high = f"rate: the recipe's peak is {peak:.2g}", 0.0, math.inf
    has_warmup = trainer.args.lr_scheduler_type not in WITHOUT_WARMUP
    if has_warmup and (warmup := trainer.args.get_warmup_steps(updates)):
        paper = noam_peak(model.config.d_model, warmup)
        text += f", the paper's for this d_model and warm-up {paper:.2g}"
        low, high = paper / 50, 5 * paper
    text += f"; the loss leaves at {breaks:.1g} without warm-up" if breaks else "; the loss doesn't leave up to 1"
    if peak > 4 * high or (breaks and peak > 10 * breaks):
        yield Finding("error", f"{text}; training will diverge: lower learning_rate")
    elif peak > high or (breaks and peak > 3 * breaks):
        yield Finding("warning", f"{text}; it may diverge: lower learning_rate, or raise warmup_steps")
    elif peak < low:
        yield Finding("warning", f"{text}; learning will be slow: raise learning_rate")
    else:
        yield Finding("ok", text)
    if too_long := long_warmup(trainer.args, updates):
        yield Finding("warning", f"rate: {too_long}")


def _forever(loader: DataLoader) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader


def check_cost(model: PreTrainedModel, trainer: Any, loader: DataLoader, updates: int) -> Iterator[Finding]:
    """Time, tokens a second and memory of the whole run, from a few updates; the largest batch that fits."""
    args, device = trainer.args, trainer.args.device
    student = copy.deepcopy(model).to(device).train()
    optimizer = make_optimizer(trainer, student)
    for group in optimizer.param_groups:
        group["lr"] = 1e-9
    if hasattr(optimizer, "train"):  # a schedule-free one
        optimizer.train()

    def update(batch: dict[str, Any]) -> float:
        start = time.perf_counter()
        with trainer.accelerator.autocast(), torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            loss = trainer.compute_loss(student, trainer._prepare_inputs(dict(batch)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return time.perf_counter() - start

    before = _memory_in_use(device)
    seconds, units, start = [], 0, time.perf_counter()
    for number, batch in enumerate(loader):
        took = update(batch)
        if number >= 2 or len(loader) < 4:  # kernels are made, memory is laid out
            seconds.append(took)
            units += int((batch["labels"] != -100).sum())
        if len(seconds) >= 8 and time.perf_counter() - start > TRIAL_SECONDS:
            break
    unit = "target tokens" if batch["labels"].dim() == 2 else "examples"
    epochs = "" if args.max_steps > 0 else f" ({args.num_train_epochs:g} epochs)"
    hours = updates * args.gradient_accumulation_steps * statistics.mean(seconds) / 3600
    text = f"cost: {units / sum(seconds):,.0f} {unit} a second; {updates:,} updates{epochs} take about "
    text += f"{_duration(hours)} (without evaluations)"
    sampler = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
    padding = getattr(sampler, "padding", 0.0)  # the library's own sampler doesn't know it
    text += f"; padding {padding:.1%}" if padding else ""
    if padding > 0.3:
        yield Finding("warning", f"{text}; raise max_tokens")
    else:
        yield Finding("ok", text)
    size = ("max_tokens", args.max_tokens) if unit == "target tokens" else ("batch size", args.train_batch_size)
    states = (value for state in optimizer.state.values() for value in state.values())
    before += sum(value.nbytes for value in states if isinstance(value, torch.Tensor))
    yield from _memory(device, before, *size)


def _memory_in_use(device: torch.device) -> int:
    """In bytes, 0 where it isn't known; the peak is counted from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError):  # not on Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _linux_memory().get("VmRSS", 0)


def _linux_memory() -> dict[str, int]:
    """What the kernel says of this process and of the machine, in bytes; nothing on another system."""
    files = [path for path in (Path("/proc/self/status"), Path("/proc/meminfo")) if path.is_file()]
    lines = [line.split() for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1:] == ["kB"]}


def _memory(device: torch.device, fixed: int, what: str, size: int) -> Iterator[Finding]:
    """The peak, of which all but `fixed` grows with the batch."""
    if device.type == "cuda":
        peak, room = torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    elif values := _linux_memory():
        peak, room = values["VmHWM"], values["MemAvailable"] + values["VmRSS"]
    else:
        return
    text = f"memory: {peak / 1e9:.1f} GB of {room / 1e9:.1f} at {what} {size:,}"
    if peak - fixed > TELLING * peak:
        text += f"; up to about {int(size * (room - fixed) / (peak - fixed)):,} would fit"
    if peak > 0.95 * room:
        yield Finding("error", f"{text}; lower it, and raise gradient_accumulation_steps")
    else:
        yield Finding("ok", text)


def _duration(hours: float) -> str:
    if hours < 0.1:
        return f"{hours * 3600:.0f} seconds"
    if hours < 2:
        return f"{hours * 60:.0f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"
