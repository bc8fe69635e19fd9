"""What a batch shows of the model: shifted labels, masks that hold, and that it can be learnt by heart."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from modeling_vanilla.training.doctor.finding import Finding
from modeling_vanilla.training.schedule import noam_peak

OVERFIT_STEPS, OVERFIT_EXAMPLES = 120, 8
TOLERANCE = 1e-4


def seen_and_said(model: PreTrainedModel, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """
    The token that each position is given and the one that it has to say, both `(B, T)`, -100 where there is none; None
    for a model that says one thing an example.
    """
    labels = batch["labels"]
    if model.config.is_encoder_decoder:
        return model.prepare_decoder_input_ids_from_labels(labels), labels
    return (batch["input_ids"][:, :-1], labels[:, 1:]) if labels.dim() == 2 else None


def side_by_side(model: PreTrainedModel, job: Any, batch: dict[str, Any], examples: int = 3) -> Iterator[str]:
    """The first examples of a batch as the model sees them."""
    columns: dict[str, Any] = {}
    if "input_ids" in batch and (model.config.is_encoder_decoder or batch["labels"].dim() == 1):
        columns["source"] = batch["input_ids"]
    if pair := seen_and_said(model, batch):
        columns |= dict(zip(("decoder input", "label"), pair, strict=True))
    for row in range(min(examples, len(batch["labels"]))):
        for name, ids in columns.items():
            tokens = job.processor.convert_ids_to_tokens([i for i in ids[row].tolist() if i >= 0])
            yield f"  {name:<14}{' '.join(token.replace(' ', '_') for token in tokens)}"
        if pair is None:
            yield f"  {'label':<14}{job.labels[int(batch['labels'][row])]}"
        yield ""


@torch.no_grad()
def check_labels(model: PreTrainedModel, batch: dict[str, Any]) -> Iterator[Finding]:
    """Each position must be given what comes before its label, and not the label; the loss must be the labels'."""
    model.eval()
    pair = seen_and_said(model, batch)
    outputs = model(**batch)
    logits, said = outputs.logits, batch["labels"]
    if pair is not None:
        seen, said = pair
        real = said != -100
        logits = logits[:, : said.shape[1]]
        if torch.equal(seen[real], said[real]):
            yield Finding("error", "batch: the decoder is given the labels, and need only copy: shift them by one")
        elif not (seen[:, 0] == model.config.decoder_start_token_id).all():
            yield Finding(
                "error", "batch: the decoder's input doesn't begin with the start token: shift the labels by one"
            )
        elif not torch.equal(seen[:, 1:][real[:, 1:]], said[:, :-1][real[:, 1:]]):
            yield Finding("error", "batch: the decoder's input isn't the labels shifted by one")
        else:
            yield Finding("ok", "batch: the decoder's input is the labels, shifted by one")
        ends = said.gather(1, (real.sum(1) - 1).clamp(min=0)[:, None])
        if not (ends == model.config.eos_token_id).all():
            yield Finding("error", "batch: a label doesn't end with the end token; translations would never end")
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), said.flatten())
    if not torch.isclose(outputs.loss.float(), expected, rtol=1e-5):
        yield Finding(
            "error",
            f"batch: the model's loss is {outputs.loss:.3f}, the cross-entropy of its logits and the labels "
            f"{expected:.3f}; it is trained for something else: are the labels shifted once more?",
        )
    elif pair is None:
        yield Finding("ok", "batch: the loss is the cross-entropy of the logits and the labels")


@torch.no_grad()
def check_masks(model: PreTrainedModel, batch: dict[str, Any]) -> Iterator[Finding]:
    """Nothing is seen of the future or of padding, and a row of padding gives finite numbers."""
    if "input_ids" not in batch:  # images have neither
        return
    model.eval()
    ids = batch["input_ids"][:4]
    mask = batch["attention_mask"][:4] if "attention_mask" in batch else torch.ones_like(ids)
    both = model.config.is_encoder_decoder
    decoder = model.prepare_decoder_input_ids_from_labels(batch["labels"][:4]) if both else None
    fine = True

    def logits(ids: torch.Tensor, mask: torch.Tensor, decoder: torch.Tensor | None) -> torch.Tensor:
        return model(ids, mask, **({"decoder_input_ids": decoder} if both else {})).logits

    before = logits(ids, mask, decoder)  # (B, T, V), or (B, L) for labels
    changed = (decoder if decoder is not None else ids).clone()
    T = changed.shape[1]
    changed[:, T // 2 :] = (changed[:, T // 2 :] + 1) % model.config.vocab_size
    after = logits(ids, mask, changed) if both else logits(changed, mask, None)
    if before.dim() == 3 and T > 1 and (after[:, : T // 2] - before[:, : T // 2]).abs().max() > TOLERANCE:
        fine = False
        yield Finding(
            "error", "masks: a later target token changes an earlier prediction; the causal mask doesn't hold"
        )
    width = max(ids.shape[1] - 3, 1)  # the row isn't made longer: a learned table of positions may end there
    more = torch.full_like(ids[:, width:], model.config.pad_token_id)
    plain = logits(ids[:, :width], mask[:, :width], decoder)
    padded = logits(
        torch.cat((ids[:, :width], more), 1), torch.cat((mask[:, :width], torch.zeros_like(more)), 1), decoder
    )
    if (padded[:, : plain.shape[1]] - plain).abs().max() > TOLERANCE:
        fine = False
        yield Finding("error", "masks: padding changes predictions; the padding mask doesn't hold")
    if not logits(ids, torch.zeros_like(mask), decoder).isfinite().all():
        fine = False
        yield Finding("error", "masks: an input that is all padding gives numbers that aren't finite")
    if fine:
        yield Finding("ok", "masks: neither the future nor padding is seen, and a row of padding is finite")


def check_overfitting(model: PreTrainedModel, batch: dict[str, Any]) -> Iterator[Finding]:
    """A few examples must be learnt by heart."""
    few = {name: value[:OVERFIT_EXAMPLES] for name, value in batch.items() if isinstance(value, torch.Tensor)}
    student = copy.deepcopy(model)
    for module in student.modules():
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
        elif isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    first, last = _fit(student.train(), few, 2 * noam_peak(model.config.d_model, 4000), OVERFIT_STEPS)
    if not last < first / 3:
        yield Finding(
            "error",
            f"overfitting: {OVERFIT_STEPS} updates on {len(few['labels'])} examples bring the loss from {first:.2f} "
            f"to {last:.2f} nats only; something doesn't learn: frozen weights, or labels of other texts",
        )
    else:
        yield Finding("ok", f"overfitting: one batch is learnt by heart ({first:.2f} to {last:.2f} nats)")


def _fit(model: PreTrainedModel, batch: dict[str, torch.Tensor], rate: float, steps: int) -> tuple[float, float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate, betas=(0.9, 0.98))
    first = last = math.nan
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20)
        outputs = model(**batch)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        last = float(outputs.loss.detach())
        first = last if step == 0 else first
        if step and last < first / 10:
            break
    return first, last
