"""Updates that would spoil a model: a loss or gradient that isn't finite, or a gradient that explodes."""

import json
import math
import statistics
from collections import deque
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from modeling_vanilla.decoding.scoring import token_log_probs
from modeling_vanilla.training.schedule import noam_peak

FOLDER = "bad-updates"
REMEMBERED, ENOUGH = 100, 20  # norms that an explosion is measured against, and how many it takes


class BadUpdate(ValueError):
    """Ends the run before the update is made."""


class GradientWatch:
    """
    Judges each update by its gradient's norm.

    Args:
        ratio: an explosion is a norm above this times the median of the last 100, and above the median of the run's
            first (where a task is solved the norms are next to nothing, but for a few); 0: only what isn't finite.
        clipped_to: the norm that an update has at most; 0: any.
    """

    def __init__(self, ratio: float, clipped_to: float = 0.0):
        self.ratio, self.clipped_to = ratio, clipped_to or math.inf
        self.norms: deque[float] = deque(maxlen=REMEMBERED)
        self.first: float | None = None  # the median of the run's first

    def fault(self, norm: float) -> str | None:
        """What is wrong with an update of this norm; one that is sound is remembered."""
        if not math.isfinite(norm):
            return "the loss or its gradient isn't finite"
        norm = min(norm, self.clipped_to)
        median = statistics.median(self.norms) if len(self.norms) >= ENOUGH else 0.0
        if self.ratio and median and norm > max(self.ratio * median, self.first or 0.0):
            return f"the gradient's norm is {norm:.3g}, {norm / median:,.0f} times the median of the updates before"
        self.norms.append(norm)
        if self.first is None and len(self.norms) >= ENOUGH:
            self.first = statistics.median(self.norms)
        return None


def save_update(folder: Path, name: str, batches: list[dict[str, Any]], model: Any, tokenizer: Any) -> list[dict]:
    """
    Keeps an update's batches as safetensors, and its sentences with their losses as JSON lines, the highest loss first.

    Returns:
        the sentences: `source`, `target` and `nll` (nats a token, None where it isn't finite), where there is a
        tokenizer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{number}.{key}": value.detach().cpu().contiguous()
        for number, batch in enumerate(batches)
        for key, value in batch.items()
        if isinstance(value, torch.Tensor)
    }
    save_file(tensors, folder / f"{name}.safetensors")
    rows: list[dict] = []
    for batch in batches if tokenizer is not None else ():
        if "input_ids" in batch and "labels" in batch and batch["labels"].ndim == 2:
            rows += _sentences(batch, model, tokenizer)
    rows.sort(key=lambda row: math.inf if row["nll"] is None else row["nll"], reverse=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return rows


@torch.no_grad()
def _sentences(batch: dict[str, Any], model: Any, tokenizer: Any) -> list[dict]:
    labels = batch["labels"]
    was_training = model.training
    model.eval()
    if model.config.is_encoder_decoder:
        inputs = {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
        inputs |= {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        plain = model.get_base_model() if hasattr(model, "get_base_model") else model  # out of PEFT's wrapper
        states = plain.model(**inputs, use_cache=False).last_hidden_state
        log_probs = token_log_probs(states, plain.lm_head, labels).sum(1)
        losses = (-log_probs / (labels != -100).sum(1).clamp(min=1)).tolist()
    else:
        losses = [math.nan] * len(labels)
    model.train(was_training)
    sides = [
        tokenizer.batch_decode(ids.masked_fill(ids < 0, tokenizer.pad_token_id), skip_special_tokens=True)
        for ids in (batch["input_ids"], labels)
    ]
    return [
        {"source": source, "target": target, "nll": nll if math.isfinite(nll) else None}
        for source, target, nll in zip(*sides, losses, strict=True)
    ]


def likely_cause(model: Any, rows: list[dict], args: Any, learning_rate: float) -> str:
    """What most likely made an update bad, and the remedy."""
    spoiled = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
    broken = [row for row in rows if row["nll"] is None]
    if broken and len(broken) < len(rows):
        return f"{len(broken)} of {len(rows)} sentences have no finite loss, such as {broken[0]['source']!r}"
    if spoiled:
        return f"the weights weren't finite before ({spoiled[0]}): go on from a checkpoint, with a lower learning_rate"
    if args.fp16:
        return "float16 ends at 65,504: use --bf16 true, or float32"
    warmup = args.warmup_steps if args.warmup_steps >= 1 else 4000
    peak = noam_peak(model.config.d_model, int(warmup))
    if learning_rate > 3 * peak:
        return (
            f"the learning rate is {learning_rate:.2g}, {learning_rate / peak:.1f} times the paper's peak for this "
            "d_model and warm-up: lower learning_rate, or raise warmup_steps"
        )
    worst = f", such as {rows[0]['source']!r}" if rows else ""
    return f"unusual sentences{worst}: look at them, or set max_grad_norm (1, say), or a longer warm-up"


__all__ = ["FOLDER", "BadUpdate", "GradientWatch", "likely_cause", "save_update"]
