"""
`generate()` of ours beside the library's Marian: the base model with random weights, exactly 32 tokens, in turn.

python -m benchmarks.decoding [--dtypes fp32 bf16] [--sentences 1 16 64] [--beams 1 4]
"""

import argparse
import statistics
import sys
from collections.abc import Callable

import torch

from benchmarks.common import in_turn, machine, ratio, table
from benchmarks.training import DTYPES, marian, ours

NEW_TOKENS, SOURCE_TOKENS, TARGET = 32, 16, 1.25


def decode(build: Callable, attention: str | None, dtype: str) -> Callable[[torch.Tensor, int], None]:
    model = build("base", attention)[0].eval().to(DTYPES[dtype])
    model.config.use_cache = model.generation_config.use_cache = True
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # nothing ends but by its length

    @torch.inference_mode()
    def run(ids: torch.Tensor, beams: int) -> None:
        mask = torch.ones_like(ids)
        output = model.generate(ids, attention_mask=mask, num_beams=beams, do_sample=False, max_new_tokens=NEW_TOKENS)
        assert output.shape == (len(ids), NEW_TOKENS + 1)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--sentences", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    print(f"generate(), base, {NEW_TOKENS} tokens, {machine()}\n")
    rows = []
    for dtype in args.dtypes:
        contestants = {"ours": decode(ours, None, dtype)}
        contestants |= {f"Marian, {name}": decode(marian, name, dtype) for name in ("eager", "sdpa")}
        for beams in args.beams:
            for count in args.sentences:
                ids = torch.randint(3, 30_000, (count, SOURCE_TOKENS))
                timed = {name: (lambda _, run=run: run(ids, beams)) for name, run in contestants.items()}  # noqa: B023
                seconds = in_turn(timed, args.rounds)
                best = {who: min((n for n in seconds if n.startswith(who)), key=lambda n: statistics.median(seconds[n]))
                        for who in ("ours", "Marian")}  # fmt: skip
                speeds = [f"{count * NEW_TOKENS / statistics.median(seconds[best[who]]):,.0f}" for who in best]
                middle, low, high = ratio(seconds[best["Marian"]], seconds[best["ours"]])
                verdict = "holds" if middle >= TARGET else "falls short"
                rows.append(
                    (dtype, beams, count, best["Marian"], *speeds, f"{middle:.2f} ({low:.2f} to {high:.2f})", verdict)
                )
                print(*rows[-1], file=sys.stderr)
    header = (
        "dtype",
        "beams",
        "sentences",
        "against",
        "ours, tokens/s",
        "Marian's",
        "ours is faster by",
        f"to reach {TARGET}",
    )
    print(table(header, rows))


if __name__ == "__main__":
    main()
