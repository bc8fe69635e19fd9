"""
Why the details are there: the same run without one of them, loss curves side by side.

Without 1/sqrt(d_k) in the attention (section 3.2.1: the softmax saturates), without warm-up after post-norm (and with
pre-norm in its place), without label smoothing, without sqrt(d_model) on the embeddings, without the causal mask, and
without the shift of the decoder's input. The last two learn fast what is useless: to copy what they are shown.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import modeling_vanilla.modeling_vanilla as module
from modeling_vanilla import VanillaForConditionalGeneration as Model
from modeling_vanilla.decoding import Translator
from modeling_vanilla.evaluation.metrics import corpus_scores
from modeling_vanilla.experiments.common import SMALL_TRANSLATION, Options, Report, axes_of, lines, styled
from modeling_vanilla.training import load_recipe
from modeling_vanilla.training.doctor import check_labels, check_masks
from modeling_vanilla.training.jobs import JOBS


def without_scaling(model: Model) -> None:
    for part in model.modules():
        if hasattr(part, "scaling"):
            part.scaling = 1.0


def open_mask(config: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    T = hidden_states.shape[1]
    return hidden_states.new_zeros(len(hidden_states), 1, T, T)


def unmasked() -> AbstractContextManager:
    return patch.object(module, "create_causal_mask", open_mask)


def unshifted() -> AbstractContextManager:
    return patch.object(Model, "prepare_decoder_input_ids_from_labels", lambda self, labels: labels.clamp(min=0))


# Name: settings, what is done to the new model, and what holds while it trains.
Case = tuple[dict[str, Any], Callable[[Model], None], Callable[[], AbstractContextManager]]
NOTHING: tuple[Callable[[Model], None], Callable[[], AbstractContextManager]] = (lambda model: None, nullcontext)
CASES: dict[str, Case] = {
    "all of them": ({}, *NOTHING),
    "no 1/sqrt(d_k)": ({}, without_scaling, nullcontext),
    "no warm-up": ({"warmup_steps": 0}, *NOTHING),
    "no warm-up, pre-norm": ({"warmup_steps": 0, "norm_position": "pre"}, *NOTHING),
    "no label smoothing": ({"label_smoothing_factor": 0.0}, *NOTHING),
    "no embedding scaling": ({"scale_embedding": False}, *NOTHING),
    "no causal mask": ({}, NOTHING[0], unmasked),
    "no shift": ({}, NOTHING[0], unshifted),
}


def fit(options: Options, name: str, seed: int) -> dict[str, Any]:
    """The run's history, what the first update's attention was like, BLEU of greedy search, and what doctor says."""
    changes, change, while_training = CASES[name]
    settings = {**options.pairs(), **SMALL_TRANSLATION, "attn_implementation": "eager", "seed": seed}
    if options.size == "small":
        settings |= {"max_steps": 120, "warmup_steps": 40, "logging_steps": 10}
    else:
        shape = {
            "d_model": 128,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "encoder_ffn_dim": 256,
            "decoder_ffn_dim": 256,
        }
        length = {"max_tokens": 2048, "max_steps": 800, "warmup_steps": 160, "logging_steps": 50, "bf16": True}
        settings |= shape | length
    folder = options.folder / f"details-{''.join(c if c.isalnum() else '_' for c in name)}-{seed}-{options.size}"
    done = folder / "found.json"
    if done.is_file():
        return json.loads(done.read_text(encoding="utf-8"))
    quiet = {"output_dir": folder, "disable_tqdm": True, "report_to": "none"}
    words = [str(word) for key, value in {**settings, **changes, **quiet}.items() for word in (f"--{key}", value)]
    recipe = load_recipe(None, words)
    folder.mkdir(parents=True, exist_ok=True)
    job: Any = JOBS["translation"](recipe, Path(folder))
    torch.manual_seed(seed)
    job.prepare()
    model = job.build()
    model.set_attn_implementation("eager")
    change(model)
    with while_training():
        trainer = job.trainer(model)
        batch = next(iter(trainer.get_train_dataloader()))
        findings = [
            str(f.text) for check in (check_labels, check_masks) for f in check(model, batch) if f.level != "ok"
        ]
        with torch.no_grad():
            attention = model.eval()(**batch, output_attentions=True).encoder_attentions
        peak = float(torch.stack([layer.amax(-1).mean() for layer in attention]).mean())
        trainer.train()
    sources, targets = lines(options, "test", options.choose(50, 500))
    found = {
        "history": trainer.state.log_history, "peak": peak, "doctor": findings,
        **bleu(trainer.model, job.processor, sources, targets),
    }  # fmt: skip
    done.write_text(json.dumps(found), encoding="utf-8")
    return found


def bleu(model: Model, tokenizer: Any, sources: list[str], targets: list[str]) -> dict[str, Any]:
    """Of greedy search."""
    said = [one.text for one in Translator(model.eval(), tokenizer).translate(sources, num_beams=1)]
    (score,) = corpus_scores(said, targets, measures=["bleu"], bootstrap=0)
    return {"bleu": score.value, "signature": f"{len(sources)} test sentences, {score.signature}"}


def run(options: Options) -> Report:
    found = {name: fit(options, name, options.seeds[0]) for name in CASES}
    figure, axes = axes_of(2, xlabel="updates")
    rows = []
    for name, style in styled(list(CASES)):
        logs = [entry for entry in found[name]["history"] if "nll" in entry and "grad_norm" in entry]
        for axis, key in zip(axes, ("nll", "grad_norm"), strict=True):
            axis.plot([x["step"] for x in logs], [x[key] for x in logs], label=name, markersize=3, **style)
        norms = sorted(x["grad_norm"] for x in logs)
        one = found[name]
        says = "; ".join(text.split(": ", 1)[1].split(";")[0] for text in one["doctor"]) or "nothing"
        rows.append((name, f"{one['peak']:.2f}", f"{logs[0]['grad_norm']:.2f}", f"{norms[len(norms) // 2]:.2f}",
                     f"{logs[-1]['nll']:.2f}", f"{one['bleu']:.1f}", says))  # fmt: skip
    axes[0].set(ylabel="training NLL (nats a token)")
    axes[1].set(ylabel="gradient norm", yscale="log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    header = ("without", "largest attention weight at the start", "first gradient norm", "median", "last training NLL",
              "BLEU, greedy", "the doctor says")  # fmt: skip
    what = "Multi30k en-de" if options.data else "the built-in corpus"
    return Report([(header, rows)], figure, sentence(rows), f"{what}, one seed; {one['signature']}")


def sentence(rows: Sequence[tuple[str, ...]]) -> str:
    base, figures = rows[0], {row[0]: row for row in rows}
    others = ", ".join(f"{row[0]} {row[5]}" for row in rows[1:])
    return (
        f"With all of them greedy search reaches {base[5]} BLEU; changed one at a time: {others}. Without "
        f"1/sqrt(d_k) the largest weight of an encoder's attention is {figures['no 1/sqrt(d_k)'][1]} on average before "
        f"training, with it {base[1]}. Without the mask or the shift the training loss ends at "
        f"{figures['no causal mask'][4]} and {figures['no shift'][4]} nats against {base[4]}, and translations score "
        f"{figures['no causal mask'][5]} and {figures['no shift'][5]}: a low loss that is worth nothing."
    )
