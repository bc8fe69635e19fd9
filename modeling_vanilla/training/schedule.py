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


def inverse_sqrt_schedule(optimizer: Optimizer, warmup_steps: int) -> LambdaLR:
    """
    Linear warm-up, then decay with the inverse square root of the step.

    With the optimizer's rate at `noam_peak`, the n-th update uses lrate = d_model^-0.5 · min(n^-0.5, n · warmup^-1.5).
    The library's `inverse_sqrt` counts from 0: its first update has a rate of 0, and all others come one step late.
    """
    return LambdaLR(optimizer, lambda updates_done: inverse_sqrt_factor(updates_done + 1, warmup_steps))


__all__ = ["inverse_sqrt_factor", "inverse_sqrt_schedule", "noam_peak"]
