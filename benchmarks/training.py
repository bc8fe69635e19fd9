"""
A training step of ours beside the library's Marian and `torch.nn.Transformer`: same shapes, same batches, in turn.

python -m benchmarks.training [--sizes tiny base] [--dtypes fp32 bf16] [--data_dir FOLDER]
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel
from transformers.trainer_pt_utils import LabelSmoother

from benchmarks.common import in_turn, machine, product_speed, ratio, table
from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.data import DataArguments, PairTexts, load_corpus, prepare_pairs, train_tokenizer
from modeling_vanilla.data.batching import PairCollator, TokenBatchSampler, TokenPairs
from modeling_vanilla.positions import sinusoids

SIZES = {  # layers a side, width, feed-forward width, heads, vocabulary
    "tiny": (4, 128, 256, 4, 10_000),
    "base": (6, 512, 2048, 8, 32_000),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROUNDS = {"tiny": 15, "base": 3}
SMOOTHING, DROPOUT = 0.1, 0.1
TARGETS = {("tiny", "bf16"): 1.8, ("base", "bf16"): 1.4, ("tiny", "fp32"): 1.25, ("base", "fp32"): 1.05}
Batch = dict[str, torch.Tensor]


def batches(data: DataArguments, count: int, max_tokens: int = 4096) -> list[Batch]:
    """Batches of real sentences' lengths, with random tokens below 10,000 in the place of theirs."""
    corpus = load_corpus(data)
    vocab_size = 1500 if data.dataset_name else 10_000
    tokenizer = train_tokenizer(PairTexts(corpus["train"]), vocab_size)
    pairs = TokenPairs(prepare_pairs(corpus["train"], tokenizer, data, training=True)[0])
    sampler = TokenBatchSampler(*pairs.lengths(), max_tokens, seed=0)
    collate, generator = PairCollator(0), torch.Generator().manual_seed(0)
    result = []
    for _, indices in zip(range(count), sampler, strict=False):
        batch = collate(pairs.__getitems__(indices))
        for name, fill in (("input_ids", 0), ("labels", -100)):
            random = torch.randint(3, 10_000, batch[name].shape, generator=generator)
            batch[name] = random.masked_fill(batch[name] == fill, fill)
        result.append(batch)
    return result


def ours(size: str, attention: str | None) -> tuple[nn.Module, Callable[[Batch], torch.Tensor]]:
    layers, D, ffn, heads, V = SIZES[size]
    config = VanillaConfig(
        vocab_size=V, d_model=D, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=ffn, decoder_ffn_dim=ffn, dropout=DROPOUT,
        attn_implementation=attention,
    )  # fmt: skip
    model = VanillaForConditionalGeneration(config).train()
    return model, lambda batch: model(**batch, label_smoothing=SMOOTHING).loss


def marian(size: str, attention: str) -> tuple[nn.Module, Callable[[Batch], torch.Tensor]]:
    layers, D, ffn, heads, V = SIZES[size]
    config = MarianConfig(
        vocab_size=V, d_model=D, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=ffn, decoder_ffn_dim=ffn, dropout=DROPOUT, pad_token_id=0,
        eos_token_id=2, decoder_start_token_id=0, scale_embedding=True, activation_function="relu",
        attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    model, smoother = MarianMTModel(config).train(), LabelSmoother(SMOOTHING)

    def loss(batch: Batch) -> torch.Tensor:
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        return smoother(model(**inputs, decoder_input_ids=decoder_input_ids), batch["labels"])

    return model, loss


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with shared embeddings and a table of sinusoids."""

    def __init__(self, size: str):
        super().__init__()
        layers, D, ffn, heads, V = SIZES[size]
        self.embedding = nn.Embedding(V, D)
        self.transformer = nn.Transformer(D, heads, layers, layers, ffn, DROPOUT, batch_first=True)
        self.dropout, self.scale = nn.Dropout(DROPOUT), D**0.5
        self.register_buffer("table", sinusoids(torch.arange(512), D))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.embedding(ids) * self.scale + self.table[: ids.shape[1]])

    def forward(self, source: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding = torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)
        output = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=future, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return output @ self.embedding.weight.T


def torchs(size: str, _: str) -> tuple[nn.Module, Callable[[Batch], torch.Tensor]]:
    model = TorchTransformer(size).train()

    def loss(batch: Batch) -> torch.Tensor:
        target = batch["labels"].roll(1, 1).masked_fill(batch["labels"].roll(1, 1) == -100, 0)
        logits = model(batch["input_ids"], batch["attention_mask"], target)
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=SMOOTHING)

    return model, loss


CONTESTANTS = {  # name to its builder and attention
    "ours, eager": (ours, "eager"),
    "ours, sdpa": (ours, "sdpa"),
    "Marian, eager": (marian, "eager"),
    "Marian, sdpa": (marian, "sdpa"),
    "torch.nn.Transformer": (torchs, ""),
}


def step(name: str, size: str, dtype: str) -> Callable[[Batch], None]:
    """One update on a batch: forward, loss, backward, Adam."""
    build, attention = CONTESTANTS[name]
    model, loss = build(size, attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0, fused=True)

    def run(batch: Batch) -> None:
        with torch.autocast("cpu", DTYPES[dtype], enabled=dtype != "fp32"):
            value = loss(batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def peak_megabytes(name: str, size: str, dtype: str, data: DataArguments) -> float:
    """How far the resident memory of a process of its own rises above what it is with the model built: two updates."""
    words = [sys.executable, "-m", "benchmarks.training", "--memory_of", name, "--sizes", size, "--dtypes", dtype]
    words += ["--data_dir", data.data_dir] if data.data_dir else []
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def resident_megabytes(which: str = "VmRSS") -> float:
    """The process's memory now, or with "VmHWM" its peak (getrusage's is the parent's too, where that was larger)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024 / 1e6


def compare(sizes: list[str], dtypes: list[str], data: DataArguments) -> None:
    """Prints the tables."""
    print(f"Training step, {machine()}\n")
    some = batches(data, max(ROUNDS.values()) + 1)
    for dtype in dtypes:
        print(f"A product of two matrices of 2,048 in {dtype}: {product_speed(DTYPES[dtype]):,.0f} GFLOP/s")
    rows, ratios = [], []
    for size in sizes:
        for dtype in dtypes:
            runs = {name: step(name, size, dtype) for name in CONTESTANTS}
            timed = {name: (lambda number, run=run: run(some[number % len(some)])) for name, run in runs.items()}
            # A tiny step is short enough for the kernels that oneDNN makes for each new shape to count.
            warm_up = len(some) if size == "tiny" else 1
            seconds = in_turn(timed, ROUNDS[size], warm_up)
            used = [some[number % len(some)] for number in range(warm_up, warm_up + ROUNDS[size])]
            tokens = [int((batch["labels"] != -100).sum()) for batch in used]
            for name, times in seconds.items():
                speed = statistics.median(n / s for n, s in zip(tokens, times, strict=True))
                rows.append((size, dtype, name, f"{speed:,.0f}", f"{statistics.median(times):.3f}"))
            best = {who: min((n for n in seconds if n.startswith(who)), key=lambda n: statistics.median(seconds[n]))
                    for who in ("ours", "Marian")}  # fmt: skip
            middle, low, high = ratio(seconds[best["Marian"]], seconds[best["ours"]])
            target = TARGETS[size, dtype]
            verdict = "holds" if middle >= target else "falls short"
            ratios.append((size, dtype, best["ours"], best["Marian"], f"{middle:.2f} ({low:.2f} to {high:.2f})",
                           f"{target:.2f}", verdict))  # fmt: skip
            print(f"{size} {dtype}: {middle:.2f} × {best['Marian']} with {best['ours']}", file=sys.stderr)
    print("\n" + table(("size", "dtype", "who", "target tokens/s", "s a step"), rows))
    header = ("size", "dtype", "ours", "Marian", "ours is faster by (lowest to highest)", "to reach", "")
    print("\n" + table(header, ratios))
    if "base" in sizes:
        rows = []
        for dtype in dtypes:
            names = ("ours, eager" if dtype == "bf16" else "ours, sdpa", "Marian, sdpa")
            mine, theirs = (peak_megabytes(name, "base", dtype, data) for name in names)
            rows.append((dtype, f"{mine:,.0f}", f"{theirs:,.0f}", f"{mine / theirs:.2f}", "0.50"))
        print("\n" + table(("base, peak MB above the weights", "ours", "Marian", "share", "to reach"), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--data_dir", help="a folder of English and German, such as Multi30k; else the built-in corpus")
    parser.add_argument("--memory_of", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.data_dir:
        data = DataArguments(data_dir=args.data_dir, source_lang="en", target_lang="de")
    else:
        data = DataArguments(dataset_name="builtin")
    torch.manual_seed(0)
    if not args.memory_of:
        compare(args.sizes, args.dtypes, data)
        return
    some = batches(data, 2)
    run, before = step(args.memory_of, args.sizes[0], args.dtypes[0]), resident_megabytes()
    for batch in some:
        run(batch)
    print(resident_megabytes("VmHWM") - before)


if __name__ == "__main__":
    main()
