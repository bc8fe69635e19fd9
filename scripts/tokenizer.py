"""`vanilla tokenizer --vocab_size N --output DIR FILE ...`: trains the tokenizer alone."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modeling_vanilla.errors import first_line
from modeling_vanilla.scripts.common import Parser, make_folder, run_verb

OF_A_MODEL = ("config.json", "adapter_config.json", "*.safetensors", "pytorch_model*.bin", "checkpoint-*")


def parser() -> Parser:
    parser = Parser("tokenizer", "Trains one shared BPE vocabulary from text files, source and target alike.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="text, a sentence a line (.gz, .xz and .zst too)")
    parser.add_argument("--vocab_size", type=int, required=True, help="tokens, special tokens and bytes included")
    parser.add_argument("--output", required=True, help="the folder that AutoTokenizer will load")
    parser.add_argument(
        "--max_length", type=int, default=256, help="kept as its model_max_length; `vanilla train` sets its own"
    )
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
    if args.max_length < 1:
        raise ValueError(f"--max_length {args.max_length}: must be at least 1")
    make_folder(args.output)

    # A pipe can be read only once.
    held = {file: list(read_lines(Path(file), strict=True)) for file in args.files if not Path(file).is_file()}

    class Lines:
        """All files' lines, as often as they are asked for."""

        def __iter__(self) -> Iterator[str]:
            for file in args.files:
                yield from held[file] if file in held else read_lines(Path(file), strict=True)

    tokenizer = train_tokenizer(Lines(), args.vocab_size, model_max_length=args.max_length)
    save_aside(tokenizer, folder)
    print(f"{len(tokenizer):,} tokens in {args.output}", file=sys.stderr)


def save_aside(tokenizer: Any, folder: Path) -> None:
    """Saves a tokenizer whole or not at all: what is in the folder is replaced when all is written."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as aside:
            tokenizer.save_pretrained(aside)
            for file in Path(aside).iterdir():
                file.replace(folder / file.name)
    except Exception as error:  # the tokenizers library has no type for a full disk
        raise ValueError(f"{folder}: can't be written: {first_line(error)}") from error


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("tokenizer", main, argv)


if __name__ == "__main__":
    sys.exit(run())
