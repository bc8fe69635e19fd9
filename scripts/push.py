"""`vanilla push MODEL REPO`: shares a model on the Hugging Face Hub."""

import sys
import tempfile
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
    parser.add_argument(
        "--space", action="store_true", help="also make a Space of that name, where the model's page can be tried"
    )
    parser.add_argument("--token", help="by default that of HF_TOKEN or of `hf auth login`")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)
    if args.space and args.revision:
        raise ValueError("--space --revision: a Space shows the model on main: push there, or without --space")

    from modeling_vanilla.interop.hub import push
    from modeling_vanilla.interop.space import space_files

    hide_progress_bars()
    access = {"private": args.private or None, "token": args.token}
    commit = push(args.model, args.repo, revision=args.revision, **access)
    print(commit.repo_url)
    if args.space:
        name = commit.repo_url.repo_id
        with tempfile.TemporaryDirectory() as folder:
            space_files(name, folder)
            message = f"A page of {name}"
            space = push(folder, name, repo_type="space", space_sdk="gradio", commit_message=message, **access)
        print(space.repo_url)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("push", main, argv)


if __name__ == "__main__":
    sys.exit(run())
