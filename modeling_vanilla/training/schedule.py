"""The paper's learning rate (section 5.3, equation 3)."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def noam_peak(d_model: int, warmup_steps: int) -> float:
    """
    The rate that equation 3 reaches at the end of warm-up: d_model^-0.5 · warmup_steps^-0.5.

    Raises:
        ValueError: without warm-up, where the equation has no peak.
    """
    if warmup_steps < 1:
        raise ValueError(
            f"warmup_steps={warmup_steps}: the paper's learning rate needs a warm-up; give warmup_steps of at least 1, "
            "or a learning_rate of your own"
        )
    return (d_model * warmup_steps) ** -0.5


def inverse_sqrt_factor(step: int, warmup_steps: int) -> float:
    """The share of the peak rate at `step`, counted from 1: min(step / warmup, sqrt(warmup / step))."""
    warmup_steps = max(warmup_steps, 1)
    return min(step / warmup_steps, (warmup_steps / step) ** 0.5)


def fairseq_factor(updates_done: int, warmup_steps: int, initial: float) -> float:
    """
    The same as fairseq has it, where the rate of an update is that of the updates done before it, and warm-up begins
    at the share `initial` of the peak: initial + n / warmup · (1 - initial), then sqrt(warmup / n).
    """
    warmup_steps = max(warmup_steps, 1)
    if updates_done < warmup_steps:
        return initial + updates_done / warmup_steps * (1 - initial)
    return (warmup_steps / updates_done) ** 0.5


def inverse_sqrt_schedule(optimizer: Optimizer, warmup_steps: int, initial: float | None = None) -> LambdaLR:
    """
    Linear warm-up, then decay with the inverse square root of the step.

    With the optimizer's rate at `noam_peak`, the n-th update uses lrate = d_model^-0.5 · min(n^-0.5, n · warmup^-1.5).
    With `initial`, the rate's share of its peak that warm-up begins at, it is fairseq's.
    The library's `inverse_sqrt` counts from 0: its first update has a rate of 0, and all others come one step late.
    """
    if initial is not None:
        return LambdaLR(optimizer, lambda updates_done: fairseq_factor(updates_done, warmup_steps, initial))
    return LambdaLR(optimizer, lambda updates_done: inverse_sqrt_factor(updates_done + 1, warmup_steps))


__all__ = ["fairseq_factor", "inverse_sqrt_factor", "inverse_sqrt_schedule", "noam_peak"]
