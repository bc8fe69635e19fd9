"""What all verbs share: one-line errors, exit statuses, a log on standard error."""

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

USER_ERROR, INTERRUPTED = 2, 130
SETTINGS = ("num_beams", "length_penalty", "length_penalty_type", "max_len_a", "max_len_b")
DECODING = (*SETTINGS, "early_stopping", "ensemble")  # the options that say how to translate


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one line (not a page of usage), and whose options can't be shortened."""

    def __init__(self, verb: str, description: str):
        super().__init__(
            prog=f"vanilla {verb}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def add_decoding_arguments(parser: Parser) -> None:
    """What every verb that translates can be told of how."""
    parser.add_argument("--num_beams", type=int, help="1 is greedy search; by default the model's own")
    parser.add_argument("--length_penalty", type=float, help="alpha; by default the model's own")
    parser.add_argument(
        "--length_penalty_type", choices=("power", "paper"),
        help="scores of n tokens are divided by n^alpha (power, fairseq's) or ((5 + n) / 6)^alpha (paper)",
    )  # fmt: skip
    parser.add_argument("--max_len_a", type=float, default=1.0, help="at most a times the source's tokens ...")
    parser.add_argument("--max_len_b", type=int, default=50, help="... and b more")
    parser.add_argument(
        "--early_stopping", choices=("true", "false", "never"),
        help="end a search with as many translations as beams (true), when a better one is unlikely (false), or when "
        "none can come (never); by default the model's own",
    )  # fmt: skip
    parser.add_argument(
        "--ensemble", nargs="+", default=[], metavar="MODEL", type=not_a_file, help="other models, averaged with it"
    )


def not_a_file(model: str) -> str:
    """A model's name as it is; an option that takes several also takes what was meant to follow it."""
    if Path(model).is_file():
        raise argparse.ArgumentTypeError(f"{model} is a file, not a model: give files before --ensemble")
    return model


def decoding_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The same as keyword arguments of `Translator.translate`."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    if args.early_stopping is not None:
        from modeling_vanilla.decoding.lengths import EARLY_STOPPING

        settings["early_stopping"] = EARLY_STOPPING[args.early_stopping]
    return settings


def hide_progress_bars() -> None:
    """Hides the bars of loading and writing, and where nobody watches them those of mapping and uploading."""
    import datasets
    import huggingface_hub.utils
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()


def make_folder(name: str) -> None:
    """Makes a folder that is to be written to, before the work whose result it is to hold."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
        if not os.access(name, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ValueError(f"{name}: can't be written: {error.strerror}") from error


def check_output(option: str, output: str, inputs: Iterable[str | None]) -> None:
    """Refuses to write text over a file that is still to be read, or under a name that says it is compressed."""
    from modeling_vanilla.data.text_files import COMPRESSIONS

    path = Path(output)
    if path.suffix in COMPRESSIONS:
        raise ValueError(f"{option} {output}: is written as plain text: leave out {path.suffix}")
    for name in filter(None, inputs):
        if path.is_file() and Path(name).is_file() and path.samefile(name):
            raise ValueError(f"{option} {output}: would overwrite {name}, which is read: give another file")


def drop_output() -> None:
    """What is still in standard output's buffer would fail again when Python ends."""
    with suppress(OSError, ValueError):  # where it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_verb(verb: str, main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """
    Runs a verb's `main`, and turns what went wrong into a line on standard error and an exit status: 2 for a user's
    mistake, 130 when interrupted. With VANILLA_DEBUG set, the traceback is shown instead.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("httpx", "httpx2"):  # the Hub's client writes a line for each request
        logging.getLogger(name).setLevel(logging.WARNING)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as the input is read, whatever the locale
    try:
        if sys.stdin is None or sys.stdout is None:
            raise ValueError("standard input or output is closed")
        status = main(sys.argv[1:] if argv is None else argv) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has had enough, as with `| head`
        drop_output()
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("VANILLA_DEBUG"):
            raise
        if isinstance(error, OSError):  # such as a full disk
            drop_output()
        message = " ".join(str(error).split())
        print(f"vanilla {verb}: error: {message}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt as interrupt:
        print(f"vanilla {verb}: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
