"""`vanilla tokenizer --vocab_size N --output DIR FILE ...`: trains the tokenizer alone."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from modeling_vanilla.scripts.common import Parser, make_folder, run_verb

OF_A_MODEL = ("config.json", "adapter_config.json", "*.safetensors", "pytorch_model*.bin", "checkpoint-*")


def parser() -> Parser:
    parser = Parser("tokenizer", "Trains one shared BPE vocabulary from text files, source and target alike.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="text, a sentence a line (.gz, .xz and .zst too)")
    parser.add_argument("--vocab_size", type=int, required=True, help="tokens, special tokens and bytes included")
    parser.add_argument("--output", required=True, help="the folder that AutoTokenizer will load")
    parser.add_argument("--max_length", type=int, default=256, help="tokens that a model is to take at most")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)

    from modeling_vanilla.data.text_files import read_lines
    from modeling_vanilla.data.tokenizer import train_tokenizer

    folder = Path(args.output)
    if found := sorted(path.name for pattern in OF_A_MODEL for path in folder.glob(pattern)):
        raise ValueError(
            f"{folder}: holds a model ({found[0]}), whose weights fit its own tokenizer alone: choose another --output"
        )
    make_folder(args.output)

    # A pipe can be read only once.
    held = {file: list(read_lines(Path(file), strict=True)) for file in args.files if not Path(file).is_file()}

    class Lines:
        """All files' lines, as often as they are asked for."""

        def __iter__(self) -> Iterator[str]:
            for file in args.files:
                yield from held[file] if file in held else read_lines(Path(file), strict=True)

    tokenizer = train_tokenizer(Lines(), args.vocab_size, model_max_length=args.max_length)
    tokenizer.save_pretrained(args.output)
    print(f"{len(tokenizer):,} tokens in {args.output}", file=sys.stderr)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("tokenizer", main, argv)


if __name__ == "__main__":
    sys.exit(run())
