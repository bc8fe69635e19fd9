"""
Attention over length: forward and backward of a one-layer encoder (d_model 512, 8 heads) over one long sequence.

python -m benchmarks.long [--lengths 512 1024 2048 4096 8192] [--dtypes fp32 bf16] [--plot long.png]

Each cell runs in a process of its own, so that its peak memory is its own. On a GPU flash attention takes part.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.common import machine, table
from benchmarks.training import DTYPES, resident_megabytes
from modeling_vanilla import VanillaConfig, VanillaEncoderModel

BACKENDS = {"cpu": ("eager", "sdpa", "default"), "cuda": ("eager", "sdpa", "flash_attention_2", "default")}
ROUNDS = 3


def measure(backend: str, dtype: str, length: int, device: str) -> dict[str, float]:
    """Median seconds, and the megabytes of the peak above the model."""
    config = VanillaConfig(
        vocab_size=1000, encoder_layers=1, dropout=0.1, is_encoder_decoder=False,
        attn_implementation=None if backend == "default" else backend,
    )  # fmt: skip
    model = VanillaEncoderModel(config).train().to(device)
    ids = torch.randint(3, 1000, (1, length), device=device)
    before = resident_megabytes()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        with torch.autocast(device, DTYPES[dtype], enabled=dtype != "fp32"):
            loss = model(ids).last_hidden_state.float().square().mean()
        loss.backward()
        model.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    on_gpu = device == "cuda"
    peak = torch.cuda.max_memory_allocated() / 1e6 if on_gpu else resident_megabytes("VmHWM") - before
    return {"seconds": statistics.median(seconds[1:]), "megabytes": peak}


def plot(cells: dict[tuple[str, str, int], dict[str, float]], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    styles = {"eager": "-o", "sdpa": "--s", "flash_attention_2": "-.^"}  # the default is one of them
    for axis, key, unit in zip(axes, ("seconds", "megabytes"), ("seconds", "peak MB"), strict=True):
        for dtype, shade in (("fp32", "black"), ("bf16", "0.55")):
            for backend, style in styles.items():
                points = [(n, cell[key]) for (b, d, n), cell in cells.items() if (b, d) == (backend, dtype)]
                if points:
                    axis.plot(*zip(*points, strict=True), style, color=shade, label=f"{backend}, {dtype}")
        axis.set(xscale="log", yscale="log", xlabel="positions", ylabel=f"{unit}, forward and backward")
        lengths = sorted({n for _, _, n in cells})
        axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axis.minorticks_off()
    axes[0].legend(fontsize="small")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--plot", help="a PNG file to draw (needs matplotlib)")
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        backend, dtype, length, device = args.cell
        print(json.dumps(measure(backend, dtype, int(length), device)))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cells, rows = {}, []
    for dtype in args.dtypes:
        for length in args.lengths:
            row = [dtype, f"{length:,}"]
            for backend in BACKENDS[device]:
                words = [sys.executable, "-m", "benchmarks.long", "--cell", backend, dtype, str(length), device]
                done = subprocess.run(words, capture_output=True, text=True)
                if done.returncode:
                    row.append("does not fit")
                    continue
                cell = cells[backend, dtype, length] = json.loads(done.stdout.splitlines()[-1])
                row.append(f"{cell['seconds']:.2f} s, {cell['megabytes']:,.0f} MB")
            rows.append(row)
            print(*row, file=sys.stderr)
    print(f"One layer, forward and backward, {device}, {machine()}\n")
    print(table(("dtype", "positions", *BACKENDS[device]), rows))
    if args.plot:
        plot(cells, args.plot)


if __name__ == "__main__":
    main()
