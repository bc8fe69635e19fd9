"""`vanilla card MODEL`: writes a trained model's card anew, with what only a person knows."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from modeling_vanilla.scripts.common import Parser, make_folder, run_verb


def parser() -> Parser:
    parser = Parser("card", "Writes a trained model's card (README.md and the training curve) from its results.json.")
    parser.add_argument("model", help="a folder that `vanilla train` wrote")
    parser.add_argument("--license", help="the model's, as the Hub names it: apache-2.0, cc-by-4.0, other ...")
    parser.add_argument("--author", help='who trained it ("" takes back what was said, here and above)')
    parser.add_argument("--data_origin", help="where the training data is from, and what it permits")
    parser.add_argument("--output", help="write the card into this folder; by default into the model's")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)

    from modeling_vanilla.training.output import save_about

    about = {
        name: getattr(args, name) for name in ("license", "author", "data_origin") if getattr(args, name) is not None
    }
    if about.get("license") and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", about["license"]):
        raise ValueError(f"--license {args.license}: must be a name as the Hub has them, such as apache-2.0 or mit")
    if args.output:
        make_folder(args.output)
    save_about(Path(args.model), about, Path(args.output) if args.output else None)
    print(Path(args.output or args.model) / "README.md", file=sys.stderr)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("card", main, argv)


if __name__ == "__main__":
    sys.exit(run())
