"""What the libraries' exceptions say, in one line."""

from pathlib import Path


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def not_loaded(name: str | Path, what: str, error: BaseException) -> str:
    """Why a folder, or an id on the Hub, gave no model or tokenizer."""
    if Path(name).exists():
        return f"can't load a {what} from there: {first_line(error)}"
    return f"no such folder here, and can't load a {what} from the Hub: {first_line(error)}"


__all__ = ["first_line", "not_loaded"]
