"""Timing in pairs, and what a table must say about the machine."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch


def cpu_name() -> str:
    """The processor's name, as Linux knows it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor())


def machine() -> str:
    """Processor, threads, date and versions, in one line."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{time.strftime('%Y-%m-%d')}, {cpu_name()}, {torch.get_num_threads()} threads, {versions}"


def product_speed(dtype: torch.dtype, size: int = 2048, repeats: int = 5) -> float:
    """GFLOP/s of a square matrix product, the median: what this machine could do at best."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[1:]) / 1e9


def in_turn(contestants: dict[str, Callable[[int], None]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """
    Seconds of each contestant in each round: all run once a round, one after the other, on the round's number.

    Args:
        contestants: name to what is timed.
        rounds: timed rounds.
        warm_up: rounds before them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warm_up + rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run(number)
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """How many times as fast as theirs ours is: the median of the rounds' ratios, the lowest and the highest."""
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
