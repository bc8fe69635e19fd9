"""What all verbs share: one-line errors, exit statuses, a log on standard error."""

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

USER_ERROR, INTERRUPTED = 2, 130


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


def hide_progress_bars() -> None:
    """Hides the bars of loading, writing and mapping: of the latter only where nobody watches them."""
    import datasets
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()


def make_folder(name: str) -> None:
    """Makes a folder that is to be written to, before the work whose result it is to hold."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
        if not os.access(name, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ValueError(f"{name}: can't be written: {error.strerror}") from error


def run_verb(verb: str, main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """
    Runs a verb's `main`, and turns what went wrong into a line on standard error and an exit status: 2 for a user's
    mistake, 130 when interrupted. With VANILLA_DEBUG set, the traceback is shown instead.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as the input is read, whatever the locale
    try:
        return main(sys.argv[1:] if argv is None else argv) or 0
    except ValueError as error:
        if os.environ.get("VANILLA_DEBUG"):
            raise
        message = " ".join(str(error).split())
        print(f"vanilla {verb}: error: {message}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt as interrupt:
        print(f"vanilla {verb}: {interrupt or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has had enough, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
