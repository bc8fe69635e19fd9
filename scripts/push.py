"""`vanilla push MODEL REPO`: shares a model on the Hugging Face Hub."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import Parser, hide_progress_bars, run_verb


def parser() -> Parser:
    parser = Parser(
        "push", "Uploads a model to the Hub: weights, tokenizer, card, and the code for those without this package."
    )
    parser.add_argument("model", help="a folder that `vanilla train` wrote")
    parser.add_argument("repo", help="OWNER/NAME, or NAME under your own account; made where it isn't there")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--revision", help="a branch; made where it isn't there")
    parser.add_argument("--token", help="by default that of HF_TOKEN or of `hf auth login`")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)

    from modeling_vanilla.interop.hub import push

    hide_progress_bars()
    commit = push(args.model, args.repo, private=args.private or None, revision=args.revision, token=args.token)
    print(commit.repo_url)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("push", main, argv)


if __name__ == "__main__":
    sys.exit(run())
