"""The machine that a run is on, for its card: what it is, and the most power that it takes."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

KERNELS = 1024, 8192  # oneDNN's default; and enough for some 150 batches, of 55 shapes each
KERNEL_BYTES, SHARE_OF_MEMORY = 400_000, 1 / 8  # a kernel takes 0.3 to 0.8 MB; what all may take
POWERCAP = Path("/sys/class/powercap")  # Linux's account of what processors may take (RAPL), where it is readable


def keep_kernels() -> None:
    """
    Has oneDNN, which multiplies bfloat16 on a CPU, keep a kernel for each shape of an epoch's batches, as far as an
    eighth of the memory goes. By default it keeps 1,024, fewer than there are, and then makes them anew each time, at
    some 2 ms each. To be called before the first such product; what the environment says already stays.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    least, most = KERNELS
    count = min(most, max(least, int(memory * SHARE_OF_MEMORY / KERNEL_BYTES)))
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's own, and PyTorch's before it
        os.environ.setdefault(name, str(count))


def describe(device: torch.device, processes: int) -> str:
    """What the run computed on, in one line."""
    if device.type == "cuda":
        return f"{processes} × {torch.cuda.get_device_name(device)}"
    threads = f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    return f"{processes} × CPU, {threads}, {platform.processor() or platform.machine()}"


def power(device: torch.device, processes: int) -> dict[str, Any] | None:
    """
    The limit on the power that these GPUs, or this machine's processors, take: `watts`, and `what` has that limit. None
    where the machine doesn't say.
    """
    if device.type == "cuda":
        watts, what = _gpu_watts(device), "the power limit of the GPUs"
        return None if watts is None else {"watts": watts * processes, "what": what}
    if processes > int(os.environ.get("LOCAL_WORLD_SIZE", processes)):  # on several machines
        return None
    watts = _processor_watts()
    return None if watts is None else {"watts": watts, "what": "the power limit of the machine's processors"}


def _gpu_watts(device: torch.device) -> float | None:
    try:
        words = ["nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits"]
        words += ["-i", f"GPU-{torch.cuda.get_device_properties(device).uuid}"]
        return float(subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout)
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError):  # no such program, "[N/A]" ...
        return None


def _processor_watts() -> float | None:
    """The sum over the processors of what each may take for long."""
    try:
        packages = [zone for zone in POWERCAP.glob("*rapl:*") if (zone / "name").read_text().startswith("package")]
        limits = [int((zone / "constraint_0_power_limit_uw").read_text()) for zone in packages]
    except (OSError, ValueError):
        return None
    return sum(limits) / 1e6 or None


__all__ = ["describe", "keep_kernels", "power"]
