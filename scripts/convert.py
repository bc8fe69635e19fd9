"""`vanilla convert MODEL FOLDER --to FORMAT`: a trained model for another engine, or with smaller weights."""

import importlib
import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import Parser, hide_progress_bars, run_verb

FORMATS = ("ctranslate2", "onnx", "bf16", "int8")


def parser() -> Parser:
    parser = Parser(
        "convert", "Writes a trained model for another engine or with smaller weights, its tokenizer beside it."
    )
    parser.add_argument("model", help="a folder that `vanilla train` wrote, or a repository's id on the Hub")
    parser.add_argument("folder", help="where to write; a new or an empty folder")
    parser.add_argument(
        "--to", choices=FORMATS, required=True,
        help="for CTranslate2 or ONNX Runtime (extras), or, for ours, with weights in bfloat16 or int8 (for CPUs)",
    )  # fmt: skip
    parser.add_argument(
        "--quantization", choices=("float32", "int8"), default="float32", help="of the weights for ctranslate2"
    )
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)
    settings = {"quantization": args.quantization} if args.to == "ctranslate2" else {}
    if args.quantization != "float32" and not settings:
        raise ValueError(f"--quantization {args.quantization}: is for ctranslate2; --to int8 needs none")

    convert = importlib.import_module(f"modeling_vanilla.interop.{args.to}").convert

    hide_progress_bars()
    convert(args.model, args.folder, **settings)
    print(f"{args.folder}: vanilla translate {args.folder}", file=sys.stderr)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("convert", main, argv)


if __name__ == "__main__":
    sys.exit(run())
