"""
Whole trainings of the tiny shape: `vanilla train` with its defaults beside `Seq2SeqTrainer` over the library's Marian.

python -m benchmarks.end_to_end --data_dir multi30k [--updates 100]

Each trains for as many updates of as many sentences; what counts are target tokens without padding a second of
`train()`, from its start to its end.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import machine, ratio, table
from benchmarks.training import marian

SENTENCES = 128  # Trainer's batch; ours holds as many on average
CONTESTANTS = ("Seq2SeqTrainer", "Seq2SeqTrainer, group_by_length, bf16", "ours")
TARGETS = {"Seq2SeqTrainer": 5.0, "Seq2SeqTrainer, group_by_length, bf16": 2.5}
VOCABULARY, MAX_TOKENS = 10_000, 2048


def stock(data_dir: str, updates: int, best: bool) -> tuple[int, float]:
    """Target tokens and seconds of the library's trainer over its own Marian, with its collator and smoother."""
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    from modeling_vanilla.data import DataArguments, PairTexts, load_corpus, prepare_pairs, train_tokenizer

    data = DataArguments(data_dir=data_dir, source_lang="en", target_lang="de")
    corpus = load_corpus(data)
    tokenizer = train_tokenizer(PairTexts(corpus["train"]), VOCABULARY)
    pairs = prepare_pairs(corpus["train"], tokenizer, data, training=True)[0].with_format(None)
    pairs = pairs.remove_columns([name for name in pairs.column_names if name not in ("input_ids", "labels")])
    model, _ = marian("tiny", "sdpa")
    seen = 0

    class Counting(DataCollatorForSeq2Seq):
        def __call__(self, features, return_tensors=None):
            nonlocal seen
            batch = super().__call__(features, return_tensors)
            seen += int((batch["labels"] != -100).sum())
            return batch

    with tempfile.TemporaryDirectory() as folder:
        args = Seq2SeqTrainingArguments(
            folder, per_device_train_batch_size=SENTENCES, max_steps=updates, label_smoothing_factor=0.1, bf16=best,
            learning_rate=1e-3, warmup_steps=updates, save_strategy="no", report_to="none", disable_tqdm=True,
            use_cpu=True, **({"train_sampling_strategy": "group_by_length"} if best else {}),
        )  # fmt: skip
        trainer = Seq2SeqTrainer(model, args, Counting(tokenizer, model), pairs)
        seconds = trainer.train().metrics["train_runtime"]
    return seen, seconds


def ours(data_dir: str, updates: int) -> tuple[int, float]:
    """The same of `vanilla train` with its defaults, in a process of its own, from `train()`'s start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "vanilla", "train", "--data_dir", data_dir, "--source_lang", "en", "--target_lang", "de", "--model", "tiny",
            "--vocab_size", str(VOCABULARY), "--max_tokens", str(MAX_TOKENS), "--max_steps", str(updates),
            "--warmup_steps", str(updates), "--disable_tqdm", "true", "--output_dir", f"{folder}/out",
            "--eval_strategy", "no", "--save_strategy", "no", "--predict_with_generate", "false",
        ]  # fmt: skip
        subprocess.run(words, check=True, capture_output=True, text=True)
        results = json.loads(Path(folder, "out", "results.json").read_text(encoding="utf-8"))
    train = next(entry for entry in results["history"] if "train_runtime" in entry)
    return round(train["train_samples_per_second"] * train["train_runtime"]), train["train_runtime"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", required=True, help="a folder of English and German, such as Multi30k")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(stock(args.data_dir, args.updates, args.run != CONTESTANTS[0])))
        return
    speeds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    per_sentence = 0.0  # target tokens: what the stock trainer's batches were seen to hold
    for _ in range(args.rounds):
        for name in CONTESTANTS:
            if name == "ours":
                sentences, seconds = ours(args.data_dir, args.updates)
                tokens = sentences * per_sentence
            else:
                words = [sys.executable, "-m", "benchmarks.end_to_end", "--run", name]
                words += ["--data_dir", args.data_dir, "--updates", str(args.updates)]
                output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                tokens, seconds = json.loads(output.splitlines()[-1])
                per_sentence = tokens / (args.updates * SENTENCES)
            speeds[name].append(tokens / seconds)
            print(f"{name}: {tokens / seconds:,.0f} target tokens/s", file=sys.stderr)
    print(f"{args.updates} updates of {SENTENCES} sentences, tiny, {machine()}\n")
    rows = []
    for name in CONTESTANTS:
        middle, low, high = ratio(speeds["ours"], speeds[name])
        target = TARGETS.get(name)
        verdict = "" if target is None else "holds" if middle >= target else "falls short"
        rows.append((name, f"{statistics.median(speeds[name]):,.0f}", f"{middle:.2f} ({low:.2f} to {high:.2f})",
                     target or "", verdict))  # fmt: skip
    print(table(("who", "target tokens/s", "ours is faster by (lowest to highest)", "to reach", ""), rows))


if __name__ == "__main__":
    main()
