"""
Table 3 of the paper in small: what each of the model's parts is worth, one changed at a time.

Base here is the tiny model. Perplexity is the plain one a token of the validation set (label smoothing left out, as it
makes the smoothed one incomparable), BLEU of the test set. Beside them the paper's own change from its base, on
newstest2013 (tables/table3.tex of arXiv 1706.03762).
"""

import math
import statistics
from typing import Any

from modeling_vanilla.experiments.common import Options, Report, axes_of, figure_of, lines, trained

# Of each row: its letter, what changes here and in the paper, and the paper's perplexity and BLEU.
TABLE: tuple[tuple[str, dict[str, Any], dict[str, Any], float, float], ...] = (
    ("base", {}, {}, 4.92, 25.8),
    ("A", {"heads": 1}, {"heads": 1}, 5.29, 24.9),
    ("A", {"heads": 2}, {"heads": 4}, 5.00, 25.5),
    ("A", {"heads": 8}, {"heads": 16}, 4.91, 25.8),
    ("A", {"heads": 16}, {"heads": 32}, 5.01, 25.4),
    ("B", {"d_k": 8}, {"d_k": 16}, 5.16, 25.1),
    ("B", {"d_k": 16}, {"d_k": 32}, 5.01, 25.4),
    ("C", {"layers": 1}, {"layers": 2}, 6.11, 23.7),
    ("C", {"layers": 2}, {"layers": 4}, 5.19, 25.3),
    ("C", {"layers": 6, "learning_rate": 1.5e-3}, {"layers": 8}, 4.88, 25.5),  # at base's its gradients explode
    ("C", {"d_model": 64}, {"d_model": 256}, 5.75, 24.5),
    ("C", {"d_model": 256}, {"d_model": 1024}, 4.66, 26.0),
    ("C", {"ffn": 128}, {"ffn": 1024}, 5.12, 25.4),
    ("C", {"ffn": 512}, {"ffn": 4096}, 4.75, 26.2),
    ("D", {"dropout": 0.0}, {"dropout": 0.0}, 5.77, 24.6),
    ("D", {"dropout": 0.4}, {"dropout": 0.2}, 4.95, 25.5),
    ("D", {"label_smoothing_factor": 0.0}, {"label_smoothing_factor": 0.0}, 4.67, 25.3),
    ("D", {"label_smoothing_factor": 0.2}, {"label_smoothing_factor": 0.2}, 5.47, 25.7),
    ("E", {"position_encoding": "learned"}, {"position_encoding": "learned"}, 4.92, 25.7),
)
SMALL = (0, 1, 7, 14, 16, 18)
WIDEST = 60  # per cent that the picture shows
ALIKE = 2  # per cent of perplexity that count as no change


def updates(options: Options) -> int:
    return options.choose(120, 1500, 100_000)


def settings_of(change: dict[str, Any], options: Options) -> dict[str, Any]:
    """The settings of `vanilla train` for a row; its peak rate goes with d_model^-0.5, as in the paper."""
    D, L, H, F, dropout = options.choose((32, 2, 4, 64, 0.1), (128, 4, 4, 256, 0.2), (512, 6, 8, 2048, 0.1))
    row = {"d_model": D, "layers": L, "heads": H, "ffn": F, "dropout": dropout, **change}
    both = {"layers": "layers", "heads": "attention_heads", "ffn": "ffn_dim"}
    model = {f"{side}_{name}": row[key] for key, name in both.items() for side in ("encoder", "decoder")}
    row = {name: value for name, value in row.items() if name not in both}
    steps = updates(options)
    rate = row.pop("learning_rate", options.choose(5e-3, 3e-3, 1e-3) * (D / row["d_model"]) ** 0.5)
    return {
        **options.pairs(), "model": "tiny", **row, **model, "bf16": options.size != "small",
        "max_tokens": options.choose(1024, 2048, 25_000), "lr_scheduler_type": "cosine",
        "learning_rate": rate, "warmup_steps": steps // 5, "max_steps": steps, "logging_steps": steps // 10,
        "eval_strategy": "steps", "eval_steps": steps, "predict_with_generate": False, "save_strategy": "no",
    }  # fmt: skip


def measure(options: Options, name: str, change: dict[str, Any]) -> tuple[int, list[float], list[float], float]:
    """Parameters; perplexities and BLEUs of the seeds; the last training NLL (with dropout) of the last."""
    perplexities, bleus, parameters, training = [], [], 0, math.nan
    for seed in options.seeds:
        _, results = trained(options, f"table3-{name}", **settings_of(change, options), seed=seed)
        nll = [entry["eval_nll"] for entry in results["history"] if "eval_nll" in entry][-1]
        perplexities.append(math.exp(nll))
        test = next(x["dataset"] for x in results["results"] if x["dataset"].startswith("test"))
        bleus.append(figure_of(results, test, "BLEU"))
        parameters = results["parameters"]
        training = [entry["nll"] for entry in results["history"] if "nll" in entry][-1]
    return parameters, perplexities, bleus, training


def named(letter: str, change: dict[str, Any]) -> str:
    return f"{letter}: " + ", ".join(f"{name} {value}" for name, value in change.items()) if change else letter


def swing(values: list[float], digits: int) -> str:
    """The mean, and the lowest and highest where there are several."""
    between = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{between}"


def moved(percent: float) -> str:
    return "alike" if abs(percent) < ALIKE else "higher" if percent > 0 else "lower"


def run(options: Options) -> Report:
    lines(options, "test", 1)  # without a test set nothing is trained
    table, here, paper, ended = [], {}, {}, {}
    for number, (letter, ours, theirs, ppl, bleu) in enumerate(TABLE):
        if options.size == "small" and number not in SMALL:
            continue
        change = options.choose(ours, ours, theirs)
        name = named(letter, change)
        parameters, perplexities, bleus, ended[name] = measure(options, name, change)
        here[name], paper[name] = statistics.mean(perplexities), ppl
        table.append((name, f"{parameters:,}", swing(perplexities, 2), swing(bleus, 1),
                      f"{named(letter, theirs)}: {ppl:.2f}", f"{bleu:.1f}"))  # fmt: skip
    base, changed = here["base"], list(here)[1:]
    here, paper = ({n: 100 * (x[n] / x["base"] - 1) for n in changed} for x in (here, paper))
    agree = [name for name in changed if moved(here[name]) == moved(paper[name])]
    figure, (axis,) = axes_of(1, xlabel="perplexity against base (%)")
    figure.set_size_inches(7, 1 + 0.33 * len(changed))
    for offset, values, color, label in ((-0.2, here, "0.3", "here"), (0.2, paper, "0.75", "the paper's row like it")):
        axis.barh([y + offset for y in range(len(changed))], list(values.values()), 0.38, color=color, label=label)
        for y, value in enumerate(values.values()):
            if value > WIDEST:  # what would leave no room for the others
                said = f"{value:+.0f} % "
                axis.text(WIDEST, y + offset, said, ha="right", va="center", fontsize="small", color="white")
    left = min(0, *here.values(), *paper.values())
    axis.set_xlim(1.1 * left, min(WIDEST, 1.1 * max(0, *here.values(), *paper.values())))
    axis.set_yticks(range(len(changed)), changed)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.legend(fontsize="small")
    others = [f"{name} (here {here[name]:+.1f} %, there {paper[name]:+.1f} %)" for name in changed if name not in agree]
    fits = ", so that it had not begun to overfit" if ended["base"] > math.log(base) else ""
    found = (
        f"Each row had {updates(options):,} updates, the paper's 100,000. Base's training loss (with dropout) ended at "
        f"{ended['base']:.2f} nats a token, its validation loss at {math.log(base):.2f}{fits}. In {len(agree)} of "
        f"{len(changed)} rows the perplexity moves as in the paper (lower, higher, or within {ALIKE} % of base)"
        + (f"; otherwise in {', '.join(others)}" if others else "")
        + f". The worst row is {max(here, key=here.__getitem__)} here, {max(paper, key=paper.__getitem__)} there."
    )  # fmt: skip
    header = ("row", "parameters", "perplexity (validation)", "BLEU (test)", "the paper's row like it: perplexity",
              "BLEU")  # fmt: skip
    return Report([(header, table)], figure, found, f"{options.text()}; {options.runs()}")
