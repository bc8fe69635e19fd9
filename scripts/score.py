"""`vanilla score MODEL --source FILE --target FILE`: how probable given translations are."""

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from modeling_vanilla.scripts.common import Parser, hide_progress_bars, run_verb


def parser() -> Parser:
    parser = Parser("score", "Prints each pair's log-probability (nats), the end token included, a line a pair.")
    parser.add_argument("model", help="a folder that `vanilla train` wrote, or a repository's id on the Hub")
    parser.add_argument("--source", required=True, help="the source, a sentence a line (.gz, .xz and .zst too)")
    parser.add_argument("--target", required=True, help="its translation, line by line")
    parser.add_argument("--normalize", action="store_true", help="divide by the number of tokens")
    parser.add_argument("--tokens", action="store_true", help="JSON lines with each token's log-probability as well")
    parser.add_argument("--max_tokens", type=int, default=8192, help="padded positions a side in a batch")
    parser.add_argument("--buffer", type=int, default=2000, help="pairs read before they are sorted into batches")
    parser.add_argument("--device", help="cpu, cuda ...; by default a GPU where there is one")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16 ...; by default what was saved")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)
    if args.buffer < 1:
        raise ValueError(f"--buffer {args.buffer}: must be at least 1 pair")

    from modeling_vanilla.data.text_files import read_parallel
    from modeling_vanilla.decoding.translator import Translator
    from modeling_vanilla.errors import TextError

    hide_progress_bars()
    translator = Translator.from_pretrained(args.model, device=args.device, dtype=args.dtype, engine="vanilla")
    pairs = iter(read_parallel(Path(args.source), Path(args.target), strict=True))
    done = 0  # lines
    while block := list(islice(pairs, args.buffer)):
        sources, targets = zip(*block, strict=True)
        try:
            found = translator.score(sources, targets, max_tokens=args.max_tokens)
        except TextError as error:
            raise ValueError(f"{args.source}, line {done + error.number}: {error.what}") from error
        done += len(block)
        for scored in found:
            value = scored.total / len(scored.tokens) if args.normalize else scored.total
            if args.tokens:
                print(json.dumps({"log_prob": value, "tokens": scored.tokens}, ensure_ascii=False))
            else:
                print(f"{value:.6f}")
        sys.stdout.flush()


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("score", main, argv)


if __name__ == "__main__":
    sys.exit(run())
