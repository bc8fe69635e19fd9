"""What can be known of a run in a minute or two, before it takes a night: each check gives findings with a remedy."""

import copy
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.trainer_utils import SchedulerType

from modeling_vanilla.data import DataArguments, load_corpus
from modeling_vanilla.data.images import load_images
from modeling_vanilla.training.arguments import VanillaTrainingArguments
from modeling_vanilla.training.jobs import JOBS
from modeling_vanilla.training.recipe import Recipe
from modeling_vanilla.training.run import build_model, build_trainer, optimizer_installed
from modeling_vanilla.training.schedule import noam_peak

MOST_PAIRS = 200_000  # of the corpus that is looked at
FEW = 3  # training examples of a label
MANY = 0.05  # a share of the pairs that is worth a warning ...
TOO_MANY = 0.5  # ... and one that no run survives
OVERFIT_STEPS, OVERFIT_EXAMPLES = 120, 8
RATES = np.geomspace(1e-6, 1.0, 43)  # eight a decade, nearly
TOLERANCE = 1e-4
TRIAL_SECONDS = 20  # of updates that are timed: memory grows over the first dozens
TELLING = 0.25  # a share of the memory: where updates need less, their batch says little of larger ones
# Nothing is evaluated, saved or shared.
QUIET = {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False, "push_to_hub": False}
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
    Runs all checks of a recipe, each finding being said as it is there. The output folder isn't touched.

    Raises:
        ValueError: for what `vanilla train` would refuse as well.
    """
    findings: list[Finding] = []

    def note(found: Iterator[Finding]) -> None:
        for finding in found:
            findings.append(finding)
            say(str(finding))

    with tempfile.TemporaryDirectory() as folder:
        most = min(recipe.data.max_train_samples or MOST_PAIRS, MOST_PAIRS)
        changes: dict[str, Any] = {"output_dir": folder, "disable_tqdm": True} | QUIET
        data = replace(recipe.data, max_train_samples=most)
        training = replace(recipe.training, **changes)
        job: Any = JOBS[recipe.data.task](replace(recipe, data=data, training=training), Path(folder))
        job.prepare()
        whole = whole_size(job, recipe.data)
        note(check_examples(job, whole) if hasattr(job, "examples") else check_corpus(job, whole))
        torch.manual_seed(recipe.training.seed)
        model = build_model(job)
        trainer = build_trainer(job, model)
        make_optimizer(trainer, copy.deepcopy(model))  # what is refused is refused now
        backend = model.config._attn_implementation
        if "flash" in backend:  # in half precision alone, which is too coarse to compare
            model.set_attn_implementation("sdpa")
        loader = trainer.get_train_dataloader()
        updates = count_updates(training, len(loader) * whole / len(job.corpus["train"]))
        batch = next(iter(loader))
        for line in side_by_side(model, job, batch):
            say(line)
        note(check_labels(model, batch))
        note(check_masks(model, batch))
        note(check_overfitting(model, batch))
        note(check_rate(model, trainer, updates))
        if "flash" in backend:
            model.set_attn_implementation(backend)
        note(check_cost(model, trainer, updates))
    return findings


def whole_size(job: Any, data: DataArguments) -> int:
    """How many examples the run will have to train on, of which the job may hold the first MOST_PAIRS alone."""
    size = len(job.corpus["train"])
    if size < MOST_PAIRS:
        return size
    corpus = load_images(data)[0] if data.task == "image_classification" else load_corpus(data)
    return len(corpus["train"])


def count_updates(args: VanillaTrainingArguments, batches: float) -> int:
    """The updates of the run, whose epochs have so many batches."""
    if args.max_steps > 0:
        return args.max_steps
    return math.ceil(args.num_train_epochs * max(math.ceil(batches / args.gradient_accumulation_steps), 1))


def make_optimizer(trainer: Any, model: PreTrainedModel) -> torch.optim.Optimizer:
    """The recipe's, for this model."""
    trainer.optimizer = None
    with optimizer_installed(trainer.args):
        return trainer.create_optimizer(model)


# The corpus -----------------------------------------------------------------------------------------------------------


def corpus_report(job: Any, whole: int) -> Finding:
    size = len(job.corpus["train"])
    cut = f"; looked at the first {size:,} of {whole:,} examples" if size < whole else ""
    return Finding("ok", f"corpus: {job.data_report()}{cut}")


def check_corpus(job: Any, whole: int) -> Iterator[Finding]:
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
    if job.recipe.data.task == "translation":
        yield from check_sides(sources, targets)
    splits = {name: list(zip(split["source"], split["target"], strict=True)) for name, split in job.corpus.items()}
    yield from check_overlap(splits)
    yield corpus_report(job, whole)


def check_sides(sources: list[str], targets: list[str]) -> Iterator[Finding]:
    copies = sum(source.strip() == target.strip() for source, target in zip(sources, targets, strict=True))
    if (share := copies / len(sources)) > MANY:
        yield Finding(
            "error" if share > TOO_MANY else "warning",
            f"corpus: {share:.0%} of the targets are copies of their sources; the model will learn to copy: drop them",
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


def check_overlap(splits: dict[str, list[Any]]) -> Iterator[Finding]:
    """Examples, as anything hashable, of other splits that training shows."""
    shown = set(splits["train"])
    for name, examples in splits.items():
        overlap = 0.0 if name == "train" else sum(example in shown for example in examples) / max(len(examples), 1)
        if overlap > MANY:
            yield Finding(
                "error" if overlap > TOO_MANY else "warning",
                f"corpus: {overlap:.0%} of {name} are in the training set; its score will mean nothing: take them out "
                "of the training set",
            )


def check_examples(job: Any, whole: int) -> Iterator[Finding]:
    """Labels that are rare or nearly all, and test examples that training shows."""
    counts = np.bincount(job.examples["train"]["label"], minlength=len(job.labels))
    commonest, rarest = int(counts.argmax()), int(counts.argmin())
    if (share := counts[commonest] / counts.sum()) > 0.95:
        yield Finding(
            "warning",
            f"corpus: {share:.0%} of the training examples have the label {job.labels[commonest]!r}; saying it always "
            "will score as much: add examples of the others",
        )
    if counts[rarest] < FEW:
        yield Finding(
            "warning",
            f"corpus: {counts[rarest]} training examples have the label {job.labels[rarest]!r}; it will hardly be "
            "learnt: add some, or take it out",
        )
    texts = "input_ids" in job.examples["train"].column_names
    yield from check_overlap(
        {
            name: list(split["source"]) if texts else [row["image"].tobytes() for row in split]
            for name, split in job.corpus.items()
        }
    )
    yield corpus_report(job, whole)


# One batch ------------------------------------------------------------------------------------------------------------


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


# Rate and cost --------------------------------------------------------------------------------------------------------


def check_rate(model: PreTrainedModel, trainer: Any, updates: int) -> Iterator[Finding]:
    """
    Raises the rate from batch to batch until the loss leaves, which the recipe's peak is to lie below. The paper's peak
    belongs to a warm-up: without one there is nothing to compare.
    """
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
        loss = float(outputs.loss.detach())
        best = min(best, loss)
        if not math.isfinite(loss) or loss > best + 3:
            breaks = float(rate)
            break
    text, low, high = f"rate: the recipe's peak is {peak:.2g}", 0.0, math.inf
    has_warmup = trainer.args.lr_scheduler_type != SchedulerType.CONSTANT
    if has_warmup and (warmup := trainer.args.get_warmup_steps(updates)):
        paper = noam_peak(model.config.d_model, warmup)
        text += f", the paper's for this d_model and warm-up {paper:.2g}"
        low, high = paper / 50, 5 * paper
    text += f"; the loss leaves at {breaks:.1g} without warm-up" if breaks else "; the loss doesn't leave up to 1"
    if peak > 4 * high or (breaks and peak > 10 * breaks):
        yield Finding("error", f"{text}; training will diverge: lower learning_rate")
    elif peak > high or (breaks and peak > 3 * breaks):
        yield Finding("warning", f"{text}; it may diverge: lower learning_rate, or raise warmup_steps")
    elif peak < low:
        yield Finding("warning", f"{text}; learning will be slow: raise learning_rate")
    else:
        yield Finding("ok", text)


def _forever(trainer: Any) -> Iterator[dict[str, Any]]:
    while True:
        yield from trainer.get_train_dataloader()


def check_cost(model: PreTrainedModel, trainer: Any, updates: int) -> Iterator[Finding]:
    """Time, tokens a second and memory of the whole run, from a few updates; the largest batch that fits."""
    args, device = trainer.args, trainer.args.device
    loader = trainer.get_train_dataloader()
    student = copy.deepcopy(model).to(device).train()
    optimizer = make_optimizer(trainer, student)
    for group in optimizer.param_groups:
        group["lr"] = 1e-9
    if hasattr(optimizer, "train"):  # a schedule-free one
        optimizer.train()

    def update(batch: dict[str, Any]) -> float:
        start = time.perf_counter()
        with trainer.accelerator.autocast(), torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            loss = trainer.compute_loss(student, trainer._prepare_inputs(dict(batch)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return time.perf_counter() - start

    before = _memory_in_use(device)
    seconds, units, start = [], 0, time.perf_counter()
    for number, batch in enumerate(loader):
        took = update(batch)
        if number >= 2 or len(loader) < 4:  # kernels are made, memory is laid out
            seconds.append(took)
            units += int((batch["labels"] != -100).sum())
        if len(seconds) >= 8 and time.perf_counter() - start > TRIAL_SECONDS:
            break
    unit = "target tokens" if batch["labels"].dim() == 2 else "examples"
    epochs = "" if args.max_steps > 0 else f" ({args.num_train_epochs:g} epochs)"
    hours = updates * args.gradient_accumulation_steps * statistics.mean(seconds) / 3600
    text = f"cost: {units / sum(seconds):,.0f} {unit} a second; {updates:,} updates{epochs} take about "
    text += f"{_duration(hours)} (without evaluations)"
    sampler = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
    padding = getattr(sampler, "padding", 0.0)  # the library's own sampler doesn't know it
    text += f"; padding {padding:.1%}" if padding else ""
    if padding > 0.3:
        yield Finding("warning", f"{text}; raise max_tokens")
    else:
        yield Finding("ok", text)
    size = ("max_tokens", args.max_tokens) if unit == "target tokens" else ("batch size", args.train_batch_size)
    states = (value for state in optimizer.state.values() for value in state.values())
    before += sum(value.nbytes for value in states if isinstance(value, torch.Tensor))
    yield from _memory(device, before, *size)


def _memory_in_use(device: torch.device) -> int:
    """In bytes, 0 where it isn't known; the peak is counted from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError):  # not on Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _linux_memory().get("VmRSS", 0)


def _linux_memory() -> dict[str, int]:
    """What the kernel says of this process and of the machine, in bytes; nothing on another system."""
    files = [path for path in (Path("/proc/self/status"), Path("/proc/meminfo")) if path.is_file()]
    lines = [line.split() for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1:] == ["kB"]}


def _memory(device: torch.device, fixed: int, what: str, size: int) -> Iterator[Finding]:
    """The peak, of which all but `fixed` grows with the batch."""
    if device.type == "cuda":
        peak, room = torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    elif values := _linux_memory():
        peak, room = values["VmHWM"], values["MemAvailable"] + values["VmRSS"]
    else:
        return
    text = f"memory: {peak / 1e9:.1f} GB of {room / 1e9:.1f} at {what} {size:,}"
    if peak - fixed > TELLING * peak:
        text += f"; up to about {int(size * (room - fixed) / (peak - fixed)):,} would fit"
    if peak > 0.95 * room:
        yield Finding("error", f"{text}; lower it, and raise gradient_accumulation_steps")
    else:
        yield Finding("ok", text)


def _duration(hours: float) -> str:
    if hours < 0.1:
        return f"{hours * 3600:.0f} seconds"
    if hours < 2:
        return f"{hours * 60:.0f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


__all__ = ["Finding", "diagnose"]
