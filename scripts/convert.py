"""`vanilla convert MODEL FOLDER --to FORMAT`: a trained model for another engine."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import Parser, hide_progress_bars, run_verb


def parser() -> Parser:
    parser = Parser("convert", "Writes a trained model in another engine's format, its tokenizer beside it.")
    parser.add_argument("model", help="a folder that `vanilla train` wrote, or a repository's id on the Hub")
    parser.add_argument("folder", help="where to write; a new or an empty folder")
    parser.add_argument("--to", choices=("ctranslate2",), required=True, help="the format")
    parser.add_argument("--quantization", choices=("float32", "int8"), default="float32", help="of the weights")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)

    from modeling_vanilla.interop.ctranslate2 import convert

    hide_progress_bars()
    convert(args.model, args.folder, args.quantization)
    print(f"{args.folder}: vanilla translate {args.folder} --engine {args.to}", file=sys.stderr)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("convert", main, argv)


if __name__ == "__main__":
    sys.exit(run())
