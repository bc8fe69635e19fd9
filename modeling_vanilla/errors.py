"""What the libraries' exceptions say, in one line."""

from pathlib import Path


class TextError(ValueError):
    """What is wrong with one of several texts: its `number`, counted from 1, and `what`."""

    def __init__(self, number: int, what: str):
        super().__init__(f"text {number} {what}")
        self.number, self.what = number, what


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def not_loaded(name: str | Path, what: str, error: BaseException) -> str:
    """Why a folder, or an id on the Hub, gave no model or tokenizer."""
    if Path(name).exists():
        return f"can't load a {what} from there: {first_line(error)}"
    return f"no such folder here, and can't load a {what} from the Hub: {first_line(error)}"


__all__ = ["TextError", "first_line", "not_loaded"]
