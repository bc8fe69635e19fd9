"""The training curve as a picture."""

import math
from pathlib import Path
from typing import Any

CURVE = "training_curve.png"


def draw_curve(history: list[dict[str, Any]], file: Path, unit: str) -> bool:
    """
    Draws training and validation loss over the updates: the plain negative log-likelihood where it was logged, else
    the loss that was trained on.

    Args:
        history: the library's `log_history`.
        file: the picture, a PNG.
        unit: what the loss is a mean over: "token" or "example".

    Returns:
        whether there is a picture: not without matplotlib (an extra), nor without at least two losses.
    """
    key = "nll" if any("nll" in entry for entry in history) else "loss"
    training, validation = (
        [(entry["step"], entry[name]) for entry in history if name in entry and math.isfinite(entry[name])]
        for name in (key, f"eval_{key}")
    )
    if len(training) + len(validation) < 2:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    if training:
        axes.plot(*zip(*training, strict=True), color="0.55", label="training")
    if validation:
        axes.plot(*zip(*validation, strict=True), "--o", color="black", markersize=4, label="validation")
    axes.set_xlabel("updates")
    axes.set_ylabel(f"{'negative log-likelihood' if key == 'nll' else 'loss'} (nats per {unit})")
    axes.grid(color="0.9")
    axes.legend()
    figure.savefig(file, dpi=100)
    return True


__all__ = ["CURVE", "draw_curve"]
