"""`vanilla VERB ...`."""

import importlib
import sys
from collections.abc import Sequence

# Each verb's module is imported when asked for: `vanilla --help` needn't wait for torch.
VERBS = {
    "doctor": "find out before a long run whether it can succeed",
    "train": "train a translation model from parallel text, as a recipe says",
    "translate": "translate a file or standard input, a sentence a line",
    "evaluate": "score a model on a test set: BLEU and chrF with signatures and intervals",
    "score": "print the log-probability of given translations",
    "attention": "draw what a translation looks at in its source",
    "average": "average the weights of several checkpoints",
    "push": "share a model on the Hugging Face Hub",
    "card": "write a trained model's card anew, with its licence, its author and its data's origin",
    "demo": "open a page in the browser to try a model on",
    "convert": "write a trained model in another engine's format",
    "prepare": "prepare a published corpus as published results have it",
    "experiment": "repeat one of the paper's experiments",
    "tokenizer": "train a tokenizer alone",
}


def usage() -> str:
    lines = [f"  {verb:<10} {text}" for verb, text in VERBS.items()]
    return "\n".join(["usage: vanilla VERB [arguments]", "", *lines, "", "`vanilla VERB --help` says more."])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb; returns the process's exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    verb, *rest = argv
    if verb == "--version":
        from importlib.metadata import version

        print(version("vanilla-transformer"))
        return 0
    if verb not in VERBS:
        import difflib

        close = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f": one of {', '.join(VERBS)}"
        print(f"vanilla: error: {verb!r} is not a verb{hint}", file=sys.stderr)
        return 2
    return importlib.import_module(f"modeling_vanilla.scripts.{verb}").run(rest)


if __name__ == "__main__":
    sys.exit(main())
