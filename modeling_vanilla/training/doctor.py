"""What can be known of a run in a minute or two, before it takes a night: each check gives findings with a remedy."""

import copy
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from modeling_vanilla.training.jobs import JOBS
from modeling_vanilla.training.recipe import Recipe
from modeling_vanilla.training.schedule import noam_peak

MOST_PAIRS = 200_000  # of the corpus that is looked at
MANY = 0.05  # a share of the pairs that is worth a warning ...
TOO_MANY = 0.5  # ... and one that no run survives
OVERFIT_STEPS, OVERFIT_SENTENCES = 120, 8
RATES = np.geomspace(1e-6, 1.0, 43)  # eight a decade, nearly
TOLERANCE = 1e-4
# Nothing is evaluated or saved.
QUIET = {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False}
QUIET |= dict.fromkeys(("average_last", "average_best", "keep_best", "early_stopping_patience"), 0)


@dataclass(frozen=True)
class Finding:
    """
    Attributes:
        level: "error" where the run can't succeed.
        text: what was found, and what to do about it.
    """

    level: Literal["ok", "warning", "error"]
    text: str

    def __str__(self) -> str:
        return f"{self.level:<7}  {self.text}"


def diagnose(recipe: Recipe, say: Callable[[str], None] = print) -> list[Finding]:
    """
    Runs all checks of a translation recipe, each finding being said as it is there. The output folder isn't touched.

    Raises:
        ValueError: for a recipe of another task, or what `vanilla train` would refuse as well.
    """
    if recipe.data.task != "translation":
        raise ValueError(f"task={recipe.data.task!r}: the doctor knows translation recipes alone")
    findings: list[Finding] = []

    def note(found: Iterator[Finding]) -> None:
        for finding in found:
            findings.append(finding)
            say(str(finding))

    with tempfile.TemporaryDirectory() as folder:
        most = min(recipe.data.max_train_samples or MOST_PAIRS, MOST_PAIRS)
        changes: dict[str, Any] = {"output_dir": folder, "report_to": [], "disable_tqdm": True} | QUIET
        data = replace(recipe.data, max_train_samples=most)
        training = replace(recipe.training, **changes)
        job: Any = JOBS["translation"](replace(recipe, data=data, training=training), Path(folder))
        job.prepare()
        note(check_corpus(job))
        torch.manual_seed(recipe.training.seed)
        model = job.build()
        trainer = job.trainer(model)
        batch = next(iter(trainer.get_train_dataloader()))
        for line in side_by_side(model, job.processor, batch):
            say(line)
        note(check_labels(model, batch))
        note(check_masks(model, batch))
        note(check_overfitting(model, batch))
        note(check_rate(model, trainer, recipe))
        note(check_cost(model, trainer, recipe, job))
    return findings


# The corpus -----------------------------------------------------------------------------------------------------------


def check_corpus(job: Any) -> Iterator[Finding]:
    """What the filters dropped, copies, lengths that don't go together, and test sentences that training shows."""
    report, train = job.report, job.corpus["train"]
    remedies = {
        "empty side": "one file may have lines that the other lacks",
        "invalid UTF-8": "convert the files to UTF-8, as with iconv",
        "control character": "the files may be binary, or in another encoding",
        "over-long": "raise max_length, or split the texts into sentences",
        "length ratio": "the lines may not translate each other: look at them, or raise max_length_ratio",
        "duplicate": "more of the same doesn't help; drop_duplicates: false keeps them",
    }
    for reason, count in report.dropped.items():
        share = count / report.total
        if share > MANY:
            level: Literal["warning", "error"] = "error" if share > TOO_MANY and reason != "duplicate" else "warning"
            yield Finding(level, f"corpus: {count:,} of {report.total:,} pairs dropped: {reason}; {remedies[reason]}")
    sources, targets = list(train["source"]), list(train["target"])
    copies = sum(source.strip() == target.strip() for source, target in zip(sources, targets, strict=True)) / len(
        sources
    )
    if copies > MANY:
        level = "error" if copies > TOO_MANY else "warning"
        yield Finding(
            level,
            f"corpus: {copies:.0%} of the targets are copies of their sources; the model will learn to copy: drop them",
        )
    lengths = np.log1p([[len(text) for text in side] for side in (sources, targets)])
    if len(sources) > 30 and lengths.std(1).min() > 0.1:
        together = float(np.corrcoef(lengths)[0, 1])
        if together < 0.3:
            yield Finding(
                "error" if together < 0.15 else "warning",
                f"corpus: lengths of source and target hardly go together (correlation {together:.2f}); the lines may "
                "not translate each other: is one file shifted or shuffled?",
            )
    shown = set(zip(sources, targets, strict=True))
    for name in job.corpus:
        if name != "train":
            pairs = list(zip(job.corpus[name]["source"], job.corpus[name]["target"], strict=True))
            overlap = sum(pair in shown for pair in pairs) / max(len(pairs), 1)
            if overlap > MANY:
                yield Finding(
                    "error" if overlap > TOO_MANY else "warning",
                    f"corpus: {overlap:.0%} of the pairs of {name} are in the training set; its score will mean "
                    "nothing: take them out of the training set",
                )
    yield Finding("ok", f"corpus: {report}")


# One batch ------------------------------------------------------------------------------------------------------------


def side_by_side(model: PreTrainedModel, tokenizer: Any, batch: dict[str, Any], sentences: int = 3) -> Iterator[str]:
    """The first sentences of a batch as the model sees them."""
    decoder = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    for row in range(min(sentences, len(decoder))):
        for name, ids in (("source", batch["input_ids"]), ("decoder input", decoder), ("label", batch["labels"])):
            tokens = tokenizer.convert_ids_to_tokens([i for i in ids[row].tolist() if i >= 0])
            yield f"  {name:<14}{' '.join(token.replace(' ', '_') for token in tokens)}"
        yield ""


def check_labels(model: PreTrainedModel, batch: dict[str, Any]) -> Iterator[Finding]:
    """Each position must be given what comes before its label, and not the label."""
    labels = batch["labels"]
    decoder, config = model.prepare_decoder_input_ids_from_labels(labels), model.config
    real = labels != -100
    if torch.equal(decoder[real], labels[real]):
        yield Finding("error", "batch: the decoder is given the labels, and need only copy: shift them by one")
    elif not (decoder[:, 0] == config.decoder_start_token_id).all():
        yield Finding("error", "batch: the decoder's input doesn't begin with the start token: shift the labels by one")
    elif not torch.equal(decoder[:, 1:][real[:, 1:]], labels[:, :-1][real[:, 1:]]):
        yield Finding("error", "batch: the decoder's input isn't the labels shifted by one")
    else:
        yield Finding("ok", "batch: the decoder's input is the labels, shifted by one")
    ends = labels.gather(1, (real.sum(1) - 1).clamp(min=0)[:, None])
    if not (ends == config.eos_token_id).all():
        yield Finding("error", "batch: a label doesn't end with the end token; translations would never end")


@torch.no_grad()
def check_masks(model: PreTrainedModel, batch: dict[str, Any]) -> Iterator[Finding]:
    """Nothing is seen of the future or of padding, and a row of padding gives finite numbers."""
    model.eval()
    ids, mask, labels = (batch[name][:4] for name in ("input_ids", "attention_mask", "labels"))
    decoder = model.prepare_decoder_input_ids_from_labels(labels)
    fine = True

    def logits(ids: torch.Tensor, mask: torch.Tensor, decoder: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder).logits

    before = logits(ids, mask, decoder)
    T = decoder.shape[1]
    changed = decoder.clone()
    changed[:, T // 2 :] = (changed[:, T // 2 :] + 1) % model.config.vocab_size
    if T > 1 and (logits(ids, mask, changed)[:, : T // 2] - before[:, : T // 2]).abs().max() > TOLERANCE:
        fine = False
        yield Finding(
            "error", "masks: a later target token changes an earlier prediction; the causal mask doesn't hold"
        )
    more = torch.full_like(ids[:, :3], model.config.pad_token_id)
    padded = logits(torch.cat((ids, more), 1), torch.cat((mask, torch.zeros_like(more)), 1), decoder)
    if (padded - before).abs().max() > TOLERANCE:
        fine = False
        yield Finding("error", "masks: padding the source changes predictions; the padding mask doesn't hold")
    if not logits(ids, torch.zeros_like(mask), decoder).isfinite().all():
        fine = False
        yield Finding("error", "masks: a source that is all padding gives numbers that aren't finite")
    if fine:
        yield Finding("ok", "masks: neither the future nor padding is seen, and a row of padding is finite")


def check_overfitting(model: PreTrainedModel, batch: dict[str, Any]) -> Iterator[Finding]:
    """A few sentences must be learnt by heart."""
    few = {name: value[:OVERFIT_SENTENCES] for name, value in batch.items() if isinstance(value, torch.Tensor)}
    student = copy.deepcopy(model)
    for module in student.modules():
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    first, last = _fit(student.train(), few, 2 * noam_peak(model.config.d_model, 4000), OVERFIT_STEPS)
    if not last < first / 3:
        yield Finding(
            "error",
            f"overfitting: {OVERFIT_STEPS} updates on {len(few['labels'])} sentences bring the loss from {first:.2f} "
            f"to {last:.2f} nats a token only; something doesn't learn: frozen weights, or labels of other texts",
        )
    else:
        yield Finding("ok", f"overfitting: one batch is learnt by heart ({first:.2f} to {last:.2f} nats a token)")


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
        last = float(outputs.nll)
        first = last if step == 0 else first
        if step and last < first / 10:
            break
    return first, last


# Rate and cost --------------------------------------------------------------------------------------------------------


def check_rate(model: PreTrainedModel, trainer: Any, recipe: Recipe) -> Iterator[Finding]:
    """Raises the rate from batch to batch until the loss leaves, which the recipe's peak is to lie below."""
    peak = trainer.args.learning_rate
    student = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(student.parameters(), betas=(0.9, trainer.args.adam_beta2))
    batches = _forever(trainer)
    best, breaks = math.inf, None
    for rate in RATES:
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        batch = {name: value[:16] for name, value in next(batches).items() if isinstance(value, torch.Tensor)}
        outputs = student(**batch)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        nll = float(outputs.nll)
        best = min(best, nll)
        if not math.isfinite(nll) or nll > best + 3:
            breaks = float(rate)
            break
    warmup = recipe.training.get_warmup_steps(max(recipe.training.max_steps, 1)) or 1
    paper = noam_peak(model.config.d_model, max(int(warmup), 1))
    leaves = f"the loss leaves at {breaks:.1g} without warm-up" if breaks else "the loss doesn't leave up to 1"
    text = f"rate: the recipe's peak is {peak:.2g}, the paper's for this d_model and warm-up {paper:.2g}; {leaves}"
    if peak > 20 * paper or (breaks and peak > 10 * breaks):
        yield Finding("error", f"{text}; training will diverge: lower learning_rate")
    elif peak > 5 * paper or (breaks and peak > 3 * breaks):
        yield Finding("warning", f"{text}; it may diverge: lower learning_rate, or raise warmup_steps")
    elif peak < paper / 50:
        yield Finding("warning", f"{text}; learning will be slow: raise learning_rate")
    else:
        yield Finding("ok", text)


def _forever(trainer: Any) -> Iterator[dict[str, Any]]:
    while True:
        yield from trainer.get_train_dataloader()


def check_cost(model: PreTrainedModel, trainer: Any, recipe: Recipe, job: Any) -> Iterator[Finding]:
    """Time, tokens a second and memory of the whole run, from a few updates; the largest batch that fits."""
    args, device = recipe.training, trainer.args.device
    loader = trainer.get_train_dataloader()
    sampler = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == 8:
            break
    student = copy.deepcopy(model).to(device).train()
    optimizer = torch.optim.AdamW(student.parameters(), 1e-9, fused=True)

    def update(batch: dict[str, Any]) -> float:
        start = time.perf_counter()
        with trainer.accelerator.autocast(), torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            loss = student(**batch, label_smoothing=args.label_smoothing_factor).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return time.perf_counter() - start

    for batch in batches[:2]:
        update(batch)  # kernels are made, memory is laid out
    seconds = [update(batch) for batch in batches]
    tokens = [int((batch["labels"] != -100).sum()) for batch in batches]
    speed = sum(tokens) / sum(seconds)
    batches_an_epoch = len(sampler) * max(job.report.total, len(job.corpus["train"])) / len(job.corpus["train"])
    updates = args.max_steps
    if updates <= 0:
        updates = math.ceil(args.num_train_epochs * batches_an_epoch / args.gradient_accumulation_steps)
    hours = updates * args.gradient_accumulation_steps * statistics.mean(seconds) / 3600
    hours *= 2 if args.r_drop else 1
    text = f"cost: {speed:,.0f} target tokens a second; {updates:,} updates take about {_duration(hours)}"
    text += f" (without evaluations); padding {sampler.padding:.1%}"
    if sampler.padding > 0.3:
        yield Finding("warning", f"{text}; raise max_tokens")
    else:
        yield Finding("ok", text)
    yield from _memory(device, args.max_tokens)


def _memory(device: torch.device, max_tokens: int) -> Iterator[Finding]:
    if device.type == "cuda":
        peak, room = torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    else:
        status = Path("/proc/self/status")
        if not status.is_file():  # not on Linux
            return
        values = {
            line.split(":")[0]: line.split()[1]
            for file in (status, Path("/proc/meminfo"))
            for line in file.read_text(encoding="utf-8").splitlines()
            if len(line.split()) > 1
        }
        peak = int(values["VmHWM"]) * 1024
        room = int(values["MemAvailable"]) * 1024 + peak
    most = int(max_tokens * room / peak)
    text = (
        f"memory: {peak / 1e9:.1f} GB of {room / 1e9:.1f} at max_tokens {max_tokens:,}; up to about {most:,} would fit"
    )
    if peak > 0.95 * room:
        yield Finding("error", f"{text}; lower max_tokens, and raise gradient_accumulation_steps")
    else:
        yield Finding("ok", text)


def _duration(hours: float) -> str:
    if hours < 2:
        return f"{hours * 60:.0f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


__all__ = ["Finding", "diagnose"]
