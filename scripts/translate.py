"""`vanilla translate MODEL [FILE]`: a sentence a line in, a sentence a line out."""

import logging
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from modeling_vanilla.scripts.common import (
    Parser,
    add_decoding_arguments,
    check_output,
    decoding_settings,
    hide_progress_bars,
    run_verb,
)


def parser() -> Parser:
    parser = Parser("translate", "Translates a file or standard input, a sentence a line, in order, as a stream.")
    parser.add_argument("model", help="a folder that `vanilla train` wrote, or a repository's id on the Hub")
    parser.add_argument("file", nargs="?", help="UTF-8 text, a sentence a line (.gz, .xz, .zst too); or standard input")
    add_decoding_arguments(parser)
    parser.add_argument("--prefixes", metavar="FILE", help="what each translation begins with, line by line")
    parser.add_argument("--glossary", metavar="FILE", help="prescribed terms: TERM TAB TRANSLATION a line")
    parser.add_argument(
        "--alignments", metavar="FILE",
        help="write there which words (they end at spaces) were made of which: 0-0 1-2 ...; with --ensemble by the "
        "first model alone",
    )  # fmt: skip
    parser.add_argument(
        "--n_best", type=int, default=1,
        help="hypotheses a line, each as SCORE TAB TEXT when above 1; where there are fewer, the last is repeated",
    )  # fmt: skip
    parser.add_argument("--scores", action="store_true", help="print SCORE TAB TEXT")
    parser.add_argument("--on_too_long", choices=("split", "refuse"), default="split", help="for lines over the limit")
    parser.add_argument("--max_tokens", type=int, default=8192, help="padded source positions × beams in a batch")
    parser.add_argument("--buffer", type=int, default=2000, help="lines read before they are sorted into batches")
    parser.add_argument(
        "--engine", choices=("vanilla", "ctranslate2", "onnx"),
        help="what runs the model; by default the one that the folder was written for",
    )  # fmt: skip
    parser.add_argument("--device", help="cpu, cuda ...; by default a GPU where there is one")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16 ...; by default what was saved")
    return parser


def line_blocks(stream: BinaryIO, most: int, where: str) -> Iterator[list[str]]:
    """
    Lines as they come: all that are there, up to `most`, without waiting for more once one is. So a pipe that pauses
    gets its translations at once, and a long file goes in large blocks.

    Lines end at "\\n" alone (a "\\r" before it is dropped): other separators may stand inside a sentence.
    """
    pending, count, ended = b"", 0, False
    while not ended:
        chunks, newlines = [pending], pending.count(b"\n")
        while newlines < most and (not newlines or select.select([stream], [], [], 0)[0]):
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                ended = True
                break
            chunks.append(chunk)
            newlines += chunk.count(b"\n")
        *lines, pending = b"".join(chunks).split(b"\n")
        if ended and pending:
            lines.append(pending)
        for start in range(0, len(lines), most):
            block = lines[start : start + most]
            yield [decode(line, where, count + number) for number, line in enumerate(block, start=1)]
            count += len(block)


def compressed_blocks(path: Path, most: int) -> Iterator[list[str]]:
    """The same of a compressed file."""
    from modeling_vanilla.data.text_files import read_lines

    lines = read_lines(path, strict=True)
    while block := list(islice(lines, most)):
        yield block


def decode(line: bytes, where: str, number: int) -> str:
    try:
        return line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}, line {number}: not UTF-8 (byte {error.start + 1} of the line): convert the file, as with iconv"
        ) from error


def next_lines(lines: Iterator[str] | None, count: int, where: str) -> list[str] | None:
    """The next lines of a file that goes beside the input."""
    if lines is None:
        return None
    block = list(islice(lines, count))
    if len(block) < count:
        raise ValueError(f"{where}: has fewer lines than there are sentences")
    return block


def processes(args: Any) -> Any:
    """The processes that `accelerate launch` started, or None where this is the only one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    if not args.file:
        raise ValueError("several processes can't share standard input: give a file")
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())


def spread(state: Any, count: int, work: Callable[[Sequence[int]], list]) -> list:
    """What `work` makes of the items 0 to `count`, each process taking every n-th; in order, on all processes."""
    if state is None:
        return work(range(count))
    from accelerate.utils import gather_object

    results: list = [None] * count
    for process, part in enumerate(gather_object([work(range(state.process_index, count, state.num_processes))])):
        results[process :: state.num_processes] = part
    return results


def aligned(translator: Any, sources: list[str], targets: list[str], max_tokens: int) -> list[Any]:
    """The alignments; empty where a model of learned positions has too few of them for a line."""
    try:
        return translator.align(sources, targets, max_tokens=max_tokens)
    except ValueError as error:
        if len(sources) > 1:
            pairs = zip(sources, targets, strict=True)
            return [found for one, other in pairs for found in aligned(translator, [one], [other], max_tokens)]
        logging.getLogger(__name__).warning("no alignment of %r: %s", sources[0][:40], error)
        return [()]


def open_output(name: str | None) -> Any:
    """A file to write beside the output, in a `with`; nothing where none is asked for."""
    if name is None:
        return nullcontext()
    try:
        return open(name, "w", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name}: can't be written: {error.strerror}") from error


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)
    if args.buffer < 1:
        raise ValueError(f"--buffer {args.buffer}: must be at least 1 line")
    if args.alignments:
        check_output("--alignments", args.alignments, (args.file, args.prefixes, args.glossary))
    where = args.file or "standard input"
    try:
        stream = open(args.file, "rb", buffering=0) if args.file else sys.stdin.buffer  # noqa: SIM115
    except OSError as error:
        raise ValueError(f"{where}: can't be read: {error.strerror}") from error

    from modeling_vanilla.data.text_files import COMPRESSIONS, read_lines
    from modeling_vanilla.decoding.alignment import pharaoh
    from modeling_vanilla.decoding.engines import engine_of
    from modeling_vanilla.decoding.glossary import Glossary
    from modeling_vanilla.decoding.translator import Translator, as_line
    from modeling_vanilla.errors import TextError

    hide_progress_bars()
    glossary = Glossary.read(args.glossary) if args.glossary else None
    prefixes = read_lines(Path(args.prefixes), strict=True) if args.prefixes else None
    engine = args.engine or engine_of(args.model)
    if args.alignments and engine != "vanilla":
        raise ValueError(f"--alignments: --engine {engine} keeps no attention; use vanilla")
    if engine == "ctranslate2" and (args.prefixes or args.glossary):
        raise ValueError("--prefixes and --glossary: --engine ctranslate2 knows neither; use vanilla")
    state = processes(args)
    device = args.device if state is None or args.device else state.device
    translator = Translator.from_pretrained(
        args.model, device=device, dtype=args.dtype, engine=engine, ensemble=args.ensemble
    )
    if args.alignments:
        translator.align([], [])  # what can't be done is said before anything is translated
    speaks = state is None or state.is_main_process
    buffer = args.buffer * (1 if state is None else state.num_processes)
    done = 0  # lines
    with stream, open_output(args.alignments if speaks else None) as alignments:
        packed = Path(where).suffix in COMPRESSIONS
        for lines in compressed_blocks(Path(where), buffer) if packed else line_blocks(stream, buffer, where):
            begun = next_lines(prefixes, len(lines), args.prefixes)

            def translate(
                indices: Sequence[int], lines: list[str] = lines, begun: list[str] | None = begun, done: int = done
            ) -> list:
                try:
                    return translator.translate(
                        [lines[i] for i in indices],
                        **decoding_settings(args),
                        n_best=args.n_best,
                        prefixes=begun and [begun[i] for i in indices],
                        glossary=glossary,
                        max_tokens=args.max_tokens,
                        on_too_long=args.on_too_long,
                        progress=speaks and sys.stderr.isatty() and not sys.stdout.isatty(),
                    )
                except TextError as error:
                    number = done + indices[error.number - 1] + 1
                    what = error.what.replace('on_too_long="split"', "--on_too_long split")
                    raise ValueError(f"{where}, line {number}: {what}") from error

            translations = spread(state, len(lines), translate)
            done += len(lines)
            for translation in translations if speaks else ():
                if args.scores or args.n_best > 1:
                    rows = [f"{score:.4f}\t{as_line(text)}\n" for text, score in translation.n_best]
                    sys.stdout.writelines(rows + rows[-1:] * (args.n_best - len(rows)))  # as many for each sentence
                else:
                    sys.stdout.write(as_line(translation.text) + "\n")
            sys.stdout.flush()
            if alignments:
                for pair in aligned(translator, lines, [t.text for t in translations], args.max_tokens):
                    alignments.write(pharaoh(pair) + "\n")
                alignments.flush()
    if prefixes is not None and next(prefixes, None) is not None:
        raise ValueError(f"{args.prefixes}: has more lines than there are sentences")


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("translate", main, argv)


if __name__ == "__main__":
    sys.exit(run())
