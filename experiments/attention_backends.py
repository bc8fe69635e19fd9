"""
Attention over length: an encoder layer (d_model 512, 8 heads) over one long sequence, on each attention backend.

Seconds of the forward pass and of forward and backward, and the peak of memory above the model. Time is fitted by
a n + b n^2 over the lengths n, neither below 0; from n = a / b the quadratic part is the larger. Every backend's output
is compared with eager's, with the same weights, in the same process. A cell is a process of its own, so that its peak
is its own.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from modeling_vanilla import VanillaConfig, VanillaEncoderModel
from modeling_vanilla.experiments.common import STYLES, Options, Report, axes_of

BACKENDS = {"cpu": ("eager", "sdpa"), "cuda": ("eager", "sdpa", "flash_attention_2")}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROUNDS = 3
Cell = dict[str, float]


def memory(which: str) -> float:
    """The process's megabytes now ("VmRSS"), or at their peak ("VmHWM"); on Linux."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024 / 1e6


def measure(backend: str, dtype: str, length: int, device: str) -> Cell:
    """Median seconds, megabytes of the peak above the model, and the largest difference from eager's output."""
    torch.manual_seed(0)
    config = VanillaConfig(vocab_size=1000, encoder_layers=1, is_encoder_decoder=False, attn_implementation=backend)
    model = VanillaEncoderModel(config).to(device)
    ids = torch.randint(3, 1000, (1, length), device=device)
    autocast = torch.autocast(device, DTYPES[dtype], enabled=dtype != "fp32")
    with autocast:  # what is loaded at the first pass isn't the length's
        model(ids[:, :8]).last_hidden_state.float().square().mean().backward()
    model.zero_grad(set_to_none=False)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 1e6 if device == "cuda" else memory("VmRSS")
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        start = now(device)
        with autocast:
            loss = model(ids).last_hidden_state.float().square().mean()
        middle = now(device)
        loss.backward()
        model.zero_grad(set_to_none=False)
        for times, stop in zip(seconds, (middle, now(device)), strict=True):
            times.append(stop - start)
    peak = (torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else memory("VmHWM")) - before
    with torch.inference_mode(), autocast:
        ours = model.eval()(ids).last_hidden_state
        model.set_attn_implementation("eager")
        difference = float((model(ids).last_hidden_state - ours).abs().max())
    forward, both = (statistics.median(times[1:]) for times in seconds)
    return {"forward": forward, "both": both, "megabytes": peak, "difference": difference}


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def quadratic(cells: dict[int, Cell], key: str) -> tuple[float, float]:
    """a and b of the fit a n + b n^2, neither below 0, n in thousands of positions, each point weighed by its size."""
    n, y = np.array(list(cells)) / 1000, np.array([cell[key] for cell in cells.values()])
    columns = np.stack((n / y, n**2 / y), 1)
    a, b = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)[0]
    if min(a, b) < 0:  # then the best lies where one of them is 0
        alone = columns.sum(0) / (columns**2).sum(0)
        errors = ((alone * columns - 1) ** 2).sum(0)
        a, b = alone * (errors == errors.min())
    return float(a), float(b)


def run(options: Options) -> Report:
    lengths = options.choose((256, 512, 1024), (512, 1024, 2048, 4096, 8192), (1024, 2048, 4096))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cells: dict[tuple[str, str], dict[int, Cell]] = {}
    rows: list[tuple[object, ...]] = []
    for dtype in DTYPES:
        for length in lengths:
            row: list[object] = [dtype, f"{length:,}"]
            for backend in BACKENDS[device]:
                words = [sys.executable, "-m", __name__, backend, dtype, str(length), device]
                done = subprocess.run(words, capture_output=True, text=True)
                if done.returncode:  # out of memory, or no flash attention here
                    row.append("doesn't run: " + next(iter(done.stderr.splitlines()[::-1]), "killed"))
                    continue
                cell = json.loads(done.stdout.splitlines()[-1])
                cells.setdefault((backend, dtype), {})[length] = cell
                row.append(f"{cell['forward']:.3f} s, {cell['both']:.3f} s, {cell['megabytes']:,.0f} MB")
            rows.append(tuple(row))
    fits = []
    for (backend, dtype), column in cells.items():
        a, b = quadratic(column, "both")
        share = b * max(column) / 1000 / (a + b * max(column) / 1000)
        worst, even = max(x["difference"] for x in column.values()), f"{1000 * a / b:,.0f}" if b else "none"
        fits.append((f"{backend}, {dtype}", f"{a:.3f}", f"{b:.3f}", even, f"{100 * share:.0f} %", f"{worst:.1e}"))
    figure, axes = axes_of(2, xlabel="positions", xscale="log", yscale="log")
    for axis, key, unit in zip(axes, ("both", "megabytes"), ("seconds", "peak MB"), strict=True):
        for style, ((backend, dtype), column) in zip(STYLES, cells.items(), strict=False):
            axis.plot(list(column), [cell[key] for cell in column.values()], label=f"{backend}, {dtype}", **style)
        axis.set_ylabel(f"{unit}, forward and backward")
        axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axis.minorticks_off()
    axes[0].legend(fontsize="small")
    header = ("dtype", "positions", *(f"{b}: forward, with backward, peak" for b in BACKENDS[device]))
    second = ("forward and backward", "a (s per 1,000)", "b (s per 1,000^2)", "the larger from (positions)",
              "quadratic at the longest", "largest difference from eager")  # fmt: skip
    return Report([(header, rows), (second, fits)], figure, sentence(cells), "one layer, one sequence")


def sentence(cells: dict[tuple[str, str], dict[int, Cell]]) -> str:
    parts = []
    for (backend, dtype), column in cells.items():
        eager = cells.get(("eager", dtype), {})
        if backend == "eager" or not (both := eager.keys() & column.keys()):
            continue
        longest = max(both)
        faster, less = (eager[longest][key] / column[longest][key] for key in ("both", "megabytes"))
        parts.append(f"{backend} in {dtype} takes 1/{faster:.1f} of eager's time and 1/{less:.1f} of its memory at "
                     f"{longest:,} positions")  # fmt: skip
    return f"Forward and backward: {'; '.join(parts) or 'nothing can be compared with eager here'}."


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])))
