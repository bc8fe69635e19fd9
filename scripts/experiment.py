"""`vanilla experiment NAME`: one of seven experiments with the paper's model, with its table, picture and finding."""

import importlib
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from modeling_vanilla.experiments import NAMES
from modeling_vanilla.scripts.common import Parser, hide_progress_bars, run_verb


def parser() -> Parser:
    listed = "; ".join(f"{name} ({what})" for name, what in NAMES.items())
    parser = Parser("experiment", f"Repeats an experiment: {listed}.")
    parser.add_argument("name", choices=(*NAMES, "all"), metavar="NAME", help="one of these, or all")
    parser.add_argument(
        "--size", choices=("small", "full", "published"), default="small",
        help="minutes on two cores, what docs/experiments.md shows, or the literature's sizes for a GPU",
    )  # fmt: skip
    parser.add_argument(
        "--data_dir", type=Path, help="the folder that multi30k/ is in; by default the built-in corpus"
    )  # fmt: skip
    parser.add_argument("--output_dir", type=Path, default=Path("runs/experiments"), help="for runs and reports")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1], help="a run each; decoding, attention_maps and details have one"
    )
    parser.add_argument("--docs", type=Path, help="a page whose sections are to be replaced, as docs/experiments.md")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)
    if args.data_dir is not None and not (args.data_dir / "multi30k").is_dir():
        raise ValueError(f"--data_dir {args.data_dir}: there is no folder multi30k in it")
    if args.docs is not None and not args.docs.is_file():
        raise ValueError(f"--docs {args.docs}: there is no such page")
    try:
        from modeling_vanilla.experiments.common import Options, check_section, write
    except ImportError as error:
        raise ValueError(f'experiments need {error.name}: pip install "vanilla-transformer[experiments]"') from error

    hide_progress_bars()
    names = NAMES if args.name == "all" else [args.name]
    for name in names:
        check_section(name, args.docs)
    for name in names:
        options = Options(args.size, args.output_dir, args.data_dir, tuple(args.seeds))
        start = time.monotonic()
        report = importlib.import_module(f"modeling_vanilla.experiments.{name}").run(options)
        words = ["vanilla", "experiment", name, "--size", args.size]
        words += ["--data_dir", "data"] if args.data_dir else []  # wherever that was
        words += ["--seeds", *map(str, args.seeds)] if args.seeds != [1] else []
        page = write(report, name, options, shlex.join(words), time.monotonic() - start, args.docs)
        print(f"{name}: {report.found}\n\n  {page}\n")


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("experiment", main, argv)


if __name__ == "__main__":
    sys.exit(run())
