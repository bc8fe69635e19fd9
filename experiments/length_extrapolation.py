"""
Length extrapolation: the four position encodings, trained up to N tokens and tested up to 2N and 4N.

Two generated tasks, where length is the only difference (copying and reversing), and text: sentences of the corpus
joined to paragraphs, source to source and target to target. Lengths are drawn evenly from 1 to N for training, and
from kN/2 to kN for each test. Rotary and ALiBi place the keys of self-attention; cross attention has no positions of
its own. Of language models it is published that ALiBi holds beyond N, that rotary lasts a little, and that sinusoidal
and learned positions fail (Press et al. 2022, arXiv 2108.12409).
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.data import train_tokenizer
from modeling_vanilla.data.batching import PairCollator
from modeling_vanilla.experiments.common import Options, Report, axes_of, lines, once, styled
from modeling_vanilla.training import VanillaTrainer, VanillaTrainingArguments

ENCODINGS = ("sinusoidal", "learned", "rotary", "alibi")
FIRST, EOS = 3, 2
Pairs = list[tuple[list[int], list[int]]]  # source and target, end tokens included


def generated(task: str, count: int, shortest: int, longest: int, symbols: int, seed: int) -> Pairs:
    """Random symbols, to be copied or reversed."""
    generator, pairs = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        length = int(torch.randint(shortest, longest + 1, (1,), generator=generator))
        x = torch.randint(FIRST, FIRST + symbols, (length,), generator=generator).tolist()
        pairs.append(([*x, EOS], [*(x if task == "copy" else x[::-1]), EOS]))
    return pairs


def paragraphs(pairs: Sequence[tuple[list[int], list[int]]], shortest: int, longest: int, seed: int = 0) -> Pairs:
    """Sentences one after the other, joined until the next would pass a length drawn from shortest + 1 to longest."""
    draw, result = random.Random(seed), []
    source, target, goal = list[int](), list[int](), draw.randint(shortest + 1, longest)
    for one, other in pairs:
        if max(len(source) + len(one), len(target) + len(other)) > goal:
            if shortest < max(len(source), len(target)) + 1 <= longest:
                result.append(([*source, EOS], [*target, EOS]))
            source, target, goal = list[int](), list[int](), draw.randint(shortest + 1, longest)
        source, target = source + one[:-1], target + other[:-1]  # one end token, at the end
    return result


def fit(options: Options, name: str, pairs: Pairs, vocab_size: int, N: int, encoding: str, seed: int):
    """A model trained on the pairs, made once."""
    D, layers = options.choose((64, 2), (128, 3), (512, 6))
    config = VanillaConfig(
        vocab_size=vocab_size, d_model=D, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=2 * D, decoder_ffn_dim=2 * D, dropout=0.1 if name == "text" else 0.0,
        position_encoding=encoding, max_position_embeddings=4 * N + 2,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "max_steps": options.choose(150, 2000, 20_000), "max_tokens": options.choose(1024, 2048, 16_384),
        "lr_scheduler_type": "cosine", "learning_rate": 2e-3, "warmup_steps": options.choose(30, 200, 2000),
        "seed": seed, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_steps": 500,
        "label_smoothing_factor": 0.0, "max_grad_norm": 1.0,
    }  # fmt: skip

    def make(folder: Path) -> dict[str, Any]:
        torch.manual_seed(seed)
        data = Dataset.from_list([{"input_ids": source, "labels": target} for source, target in pairs])
        arguments = VanillaTrainingArguments(str(folder), **settings)
        trainer = VanillaTrainer(VanillaForConditionalGeneration(config), arguments, train_dataset=data)
        trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
        trainer.model.save_pretrained(folder)
        return {}

    folder, _ = once(options, f"{name}-{encoding}", [config.to_diff_dict(), settings, pairs], make)
    return VanillaForConditionalGeneration.from_pretrained(folder).eval()


@torch.inference_mode()
def scored(model, pairs: Pairs, batch: int = 16) -> tuple[float, float]:
    """Perplexity and share of right tokens, each from the true ones before it."""
    nll, right, tokens = 0.0, 0, 0
    for start in range(0, len(pairs), batch):
        rows = [{"input_ids": source, "labels": target} for source, target in pairs[start : start + batch]]
        inputs = PairCollator(0)(rows)
        outputs, real = model(**inputs), inputs["labels"] != -100
        nll += float(outputs.nll) * int(real.sum())
        right += int((outputs.logits.argmax(-1) == inputs["labels"])[real].sum())
        tokens += int(real.sum())
    return math.exp(min(nll / tokens, 50)), right / tokens


def tasks(options: Options, N: int) -> dict[str, tuple[Pairs, dict[int, Pairs], int]]:
    """Name to training pairs, test pairs by the longest length, and vocabulary size."""
    count, tests = options.choose(3000, 20_000), options.choose(40, 200)
    result = {}
    for task in ("copy", "reverse"):
        train = generated(task, count, 1, N - 1, 30, 0)
        result[task] = (train, {k * N: generated(task, tests, k * N // 2, k * N - 1, 30, k) for k in (1, 2, 4)}, 40)
    sides = lines(options, "train", options.choose(2000, 29_000))
    tokenizer = train_tokenizer([text for side in sides for text in side], options.choose(1500, 4000))
    train, test = (
        list(zip(*(tokenizer(side)["input_ids"] for side in pair), strict=True))
        for pair in (sides, lines(options, "test"))
    )
    held_out = {k * N: paragraphs(test, k * N // 2, k * N)[:tests] for k in (1, 2, 4)}
    result["text"] = (paragraphs(train, 0, N), held_out, len(tokenizer))
    return result


def run(options: Options) -> Report:
    N = options.choose(24, 64, 512)
    rows, accuracy = [], {}
    for task, (train, tests, vocab_size) in tasks(options, N).items():
        for encoding in ENCODINGS:
            found = []
            for seed in options.seeds:
                model = fit(options, task, train, vocab_size, N, encoding, seed)
                found.append([scored(model, test) for test in tests.values()])
            means = torch.tensor(found).mean(0).tolist()  # (lengths, 2)
            accuracy[task, encoding] = [100 * share for _, share in means]
            rows.append((task, encoding, *(f"{ppl:,.2f} / {100 * share:.1f}" for ppl, share in means)))
    figure, axes = axes_of(3, xlabel="longest length (tokens)", ylabel="right tokens (%)")
    for axis, task in zip(axes, ("copy", "reverse", "text"), strict=True):
        for encoding, style in styled(ENCODINGS):
            axis.plot([N, 2 * N, 4 * N], accuracy[task, encoding], label=encoding, **style)
        axis.set(title=task, ylim=(-3, 103), xscale="log")
        axis.set_xticks([N, 2 * N, 4 * N], [str(N), str(2 * N), str(4 * N)])
        axis.minorticks_off()
    axes[0].legend(fontsize="small")
    return Report(
        [(("task", "positions", *(f"to {k * N}: perplexity / right (%)" for k in (1, 2, 4))), rows)], figure,
        " ".join(sentence(task, accuracy, N) for task in ("copy", "reverse", "text")),
        f"trained on up to {N} tokens, text from {options.text()}; {options.runs()}",
    )  # fmt: skip


def sentence(task: str, accuracy: dict[tuple[str, str], list[float]], N: int) -> str:
    ranked = sorted(ENCODINGS, key=lambda encoding: -accuracy[task, encoding][1])
    parts = (f"{name} {accuracy[task, name][0]:.0f}, {accuracy[task, name][1]:.0f}, {accuracy[task, name][2]:.0f} %"
             for name in ranked)  # fmt: skip
    return (
        f"{task.capitalize()}: right tokens up to {N}, {2 * N} and {4 * N}, best at {2 * N} first: {'; '.join(parts)}."
    )
