"""
Table 3 of the paper in small: what each of the model's parts is worth, one changed at a time.

Base here is the tiny model. Perplexity is the plain one a token of the validation set (label smoothing left out, as it
makes the smoothed one incomparable), BLEU of the test set. Beside them the paper's own change from its base, on
newstest2013 (tables/table3.tex of arXiv 1706.03762).
"""

import math
import statistics
from typing import Any

from modeling_vanilla.experiments.common import Options, Report, axes_of, figure_of, trained

# Row: what changes here; the paper's row like it, its perplexity and BLEU.
ROWS: dict[str, tuple[dict[str, Any], str, float, float]] = {
    "base": ({}, "base", 4.92, 25.8),
    "A: 1 head": ({"heads": 1}, "h = 1", 5.29, 24.9),
    "A: 2 heads": ({"heads": 2}, "h = 4", 5.00, 25.5),
    "A: 8 heads": ({"heads": 8}, "h = 16", 4.91, 25.8),
    "A: 16 heads": ({"heads": 16}, "h = 32", 5.01, 25.4),
    "B: d_k 8": ({"d_k": 8}, "d_k = 16", 5.16, 25.1),
    "B: d_k 16": ({"d_k": 16}, "d_k = 32", 5.01, 25.4),
    "C: 1 layer": ({"layers": 1}, "N = 2", 6.11, 23.7),
    "C: 2 layers": ({"layers": 2}, "N = 4", 5.19, 25.3),
    "C: 6 layers": ({"layers": 6}, "N = 8", 4.88, 25.5),
    "C: d_model 64": ({"d_model": 64}, "d = 256", 5.75, 24.5),
    "C: d_model 256": ({"d_model": 256}, "d = 1024", 4.66, 26.0),
    "C: d_ff 128": ({"ffn": 128}, "d_ff = 1024", 5.12, 25.4),
    "C: d_ff 512": ({"ffn": 512}, "d_ff = 4096", 4.75, 26.2),
    "D: dropout 0": ({"dropout": 0.0}, "dropout 0", 5.77, 24.6),
    "D: more dropout": ({"dropout": 0.4}, "dropout 0.2", 4.95, 25.5),
    "D: smoothing 0": ({"label_smoothing_factor": 0.0}, "smoothing 0", 4.67, 25.3),
    "D: smoothing 0.2": ({"label_smoothing_factor": 0.2}, "smoothing 0.2", 5.47, 25.7),
    "E: learned positions": ({"position_encoding": "learned"}, "learned", 4.92, 25.7),
}
SMALL = ("base", "A: 1 head", "C: 1 layer", "D: dropout 0", "D: smoothing 0", "E: learned positions")


def settings_of(change: dict[str, Any], options: Options) -> dict[str, Any]:
    """The settings of `vanilla train` for a row; its peak rate goes with d_model^-0.5, as in the paper."""
    D, L, H, F, dropout = options.choose((32, 2, 4, 64, 0.1), (128, 4, 4, 256, 0.2), (512, 6, 8, 2048, 0.1))
    row = {"d_model": D, "layers": L, "heads": H, "ffn": F, "dropout": dropout, **change}
    both = {"layers": "layers", "heads": "attention_heads", "ffn": "ffn_dim"}
    model = {f"{side}_{name}": row[key] for key, name in both.items() for side in ("encoder", "decoder")}
    row = {name: value for name, value in row.items() if name not in both}
    steps = options.choose(120, 1500, 100_000)
    rate = options.choose(5e-3, 3e-3, 1e-3) * (D / row["d_model"]) ** 0.5
    return {
        **options.pairs(), "model": "tiny", **row, **model, "bf16": options.size != "small",
        "max_tokens": options.choose(1024, 2048, 25_000), "lr_scheduler_type": "cosine",
        "learning_rate": rate, "warmup_steps": steps // 5, "max_steps": steps, "logging_steps": steps // 10,
        "eval_strategy": "steps", "eval_steps": steps, "predict_with_generate": False, "save_strategy": "no",
    }  # fmt: skip


def measure(options: Options, row: str) -> tuple[int, list[float], list[float]]:
    """Parameters; perplexities and BLEUs of the seeds."""
    perplexities, bleus, parameters = [], [], 0
    for seed in options.seeds:
        name = "".join(c if c.isalnum() else "_" for c in row)
        _, results = trained(options, f"table3-{name}", **settings_of(ROWS[row][0], options), seed=seed)
        nll = [entry["eval_nll"] for entry in results["history"] if "eval_nll" in entry][-1]
        perplexities.append(math.exp(nll))
        test = next(x["dataset"] for x in results["results"] if x["dataset"].startswith("test"))
        bleus.append(figure_of(results, test, "BLEU"))
        parameters = results["parameters"]
    return parameters, perplexities, bleus


def run(options: Options) -> Report:
    rows = [name for name in ROWS if options.size != "small" or name in SMALL]
    table, ours, theirs = [], {}, {}
    for name in rows:
        parameters, perplexities, bleus = measure(options, name)
        ours[name], (_, like, ppl, bleu) = statistics.mean(perplexities), ROWS[name]
        theirs[name] = ppl
        swing = f" ({min(bleus):.1f} to {max(bleus):.1f})" if len(bleus) > 1 else ""
        figures = (f"{parameters:,}", f"{ours[name]:.2f}", f"{statistics.mean(bleus):.1f}{swing}")
        table.append((name, *figures, f"{like}: {ppl:.2f}", f"{bleu:.1f}"))
    changed = rows[1:]
    here, paper = ({n: 100 * (x[n] / x["base"] - 1) for n in changed} for x in (ours, theirs))
    agree = [name for name in changed if here[name] * paper[name] > 0]
    figure, (axis,) = axes_of(1, xlabel="perplexity against base (%)")
    figure.set_size_inches(7, 1 + 0.33 * len(changed))
    places = range(len(changed))
    axis.barh([y - 0.2 for y in places], [here[n] for n in changed], 0.38, color="0.3", label="here")
    axis.barh(
        [y + 0.2 for y in places], [paper[n] for n in changed], 0.38, color="0.75", label="the paper's row like it"
    )
    axis.set_yticks(places, changed)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.legend(fontsize="small")
    others = [f"{name} (here {here[name]:+.1f} %, there {paper[name]:+.1f} %)" for name in changed if name not in agree]
    found = (
        f"In {len(agree)} of {len(changed)} rows the perplexity moves as in the paper"
        + (f"; otherwise in {', '.join(others)}" if others else "")
        + f". The worst row is {max(here, key=here.__getitem__)} here, {max(paper, key=paper.__getitem__)} there."
    )
    header = (
        "row",
        "parameters",
        "perplexity (validation)",
        "BLEU (test)",
        "the paper's row like it: perplexity",
        "BLEU",
    )
    what = "Multi30k en-de, test_2016_flickr" if options.data else "the built-in corpus"
    return Report([(header, table)], figure, found, f"{what}, {options.runs()}")
