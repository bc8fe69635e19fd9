"""
Why the details are there: the same run without one of them, loss curves side by side.

Without 1/sqrt(d_k) in the attention (section 3.2.1: the softmax saturates), without warm-up after post-norm (and with
pre-norm in its place), without label smoothing, without sqrt(d_model) on the embeddings, without the causal mask, and
without the shift of the decoder's input. The last two learn fast what is useless: to copy what they are shown.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers.trainer_utils import get_last_checkpoint

import modeling_vanilla.modeling_vanilla as module
from modeling_vanilla import VanillaForConditionalGeneration as Model
from modeling_vanilla.decoding import Translator
from modeling_vanilla.evaluation.metrics import corpus_scores
from modeling_vanilla.experiments import common
from modeling_vanilla.experiments.common import Options, Report
from modeling_vanilla.training import load_recipe
from modeling_vanilla.training.doctor.batch import check_labels, check_masks
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
# What is drawn: the training NLL of runs that see the future, the other runs' beside the whole one's, gradient norms.
BASE, BLIND = "all of them", ("no causal mask", "no shift")
NORMS = (BASE, "no 1/sqrt(d_k)", "no warm-up", "no warm-up, pre-norm")


def fit(options: Options, name: str) -> dict[str, Any]:
    """The run's history, what the first update's attention was like, BLEU of greedy search, and what doctor says."""
    changes, change, while_training = CASES[name]
    settings = {**options.pairs(), **common.SMALL_TRANSLATION, "attn_implementation": "eager", "seed": options.seed}
    settings |= {"logging_first_step": True, "explosion_ratio": 0, "on_bad_update": "skip"}  # whatever comes of it
    if options.size == "small":
        settings |= {"max_steps": 120, "warmup_steps": 40, "logging_steps": 10}
    else:
        settings |= {
            "d_model": 128, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
            "max_tokens": 2048, "max_steps": 800, "warmup_steps": 160, "logging_steps": 50, "bf16": True,
        }  # fmt: skip
    words = common.words_of(**{**settings, **changes})

    def make(folder: Path) -> dict[str, Any]:
        job: Any = JOBS["translation"](load_recipe(None, [*words, "--output_dir", str(folder)]), folder)
        torch.manual_seed(options.seed)
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
            trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
        sources, targets = common.lines(options, "test", options.choose(50, 500))
        score = bleu(trainer.model, job.processor, sources, targets)
        return {"history": trainer.state.log_history, "peak": peak, "doctor": findings, **score}

    return common.once(options, f"details-{name}", words, make)[1]


def bleu(model: Model, tokenizer: Any, sources: list[str], targets: list[str]) -> dict[str, Any]:
    """Of greedy search."""
    said = [one.text for one in Translator(model.eval(), tokenizer).translate(sources, num_beams=1)]
    (score,) = corpus_scores(said, targets, measures=["bleu"], bootstrap=0)
    return {"bleu": score.value, "signature": f"{len(sources)} test sentences, {score.signature}"}


def run(options: Options) -> Report:
    found = {name: fit(options, name) for name in CASES}
    logs = {name: [x for x in one["history"] if "nll" in x and "grad_norm" in x] for name, one in found.items()}
    rows = []
    for name, one in found.items():
        norms = sorted(x["grad_norm"] for x in logs[name])
        says = "; ".join(text.split(": ", 1)[1].split(";")[0] for text in one["doctor"]) or "nothing"
        rows.append((name, f"{one['peak']:.2f}", f"{logs[name][0]['grad_norm']:.2f}", f"{norms[len(norms) // 2]:.2f}",
                     f"{logs[name][-1]['nll']:.2f}", f"{one['bleu']:.1f}", says))  # fmt: skip
    figure, axes = common.axes_of(3, xlabel="updates")
    others = [name for name in CASES if name not in (BASE, *BLIND)]
    drawn = ((BASE, *BLIND), others, NORMS)
    for number, (axis, names) in enumerate(zip(axes, drawn, strict=True)):
        for name, style in common.styled(names):
            pairs = zip(logs[name], logs[BASE], strict=True)
            y = [(one["nll"], one["nll"] - base["nll"], one["grad_norm"])[number] for one, base in pairs]
            axis.plot([x["step"] for x in logs[name]], y, label=name, markersize=3, **style)
        axis.legend(fontsize="small")
    axes[0].set(ylabel="training NLL (nats a token)")
    axes[1].set(ylabel="training NLL above all of them's (nats)")
    axes[2].set(ylabel="gradient norm before clipping", yscale="log")
    header = ("run", "largest attention weight at the start", "gradient norm at the first update",
              "median of those logged", "last training NLL", "BLEU, greedy", "the doctor says")  # fmt: skip
    data = f"{options.text()}; {options.runs()}; {found[BASE]['signature']}"
    return Report([(header, rows)], figure, sentence(rows), data)


def sentence(rows: Sequence[tuple[str, ...]]) -> str:
    base, figures = rows[0], {row[0]: row for row in rows}
    others = ", ".join(f"{row[0]} {row[5]}" for row in rows[1:])
    mask, shift = (figures[name] for name in BLIND)
    return (
        f"With all of them greedy search reaches {base[5]} BLEU; changed one at a time: {others}. Without "
        f"1/sqrt(d_k) the largest weight of an encoder's attention is {figures['no 1/sqrt(d_k)'][1]} on average before "
        f"training, with it {base[1]}. Without the mask or the shift the training loss ends at {mask[4]} and "
        f"{shift[4]} nats against {base[4]}, and translations score {mask[5]} and {shift[5]}."
    )
