"""`vanilla average FOLDER ... --output FOLDER`: one model with the mean of several checkpoints' weights."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import Parser, run_verb


def parser() -> Parser:
    parser = Parser(
        "average", "Averages the weights of checkpoints (section 6.1) in float64 and writes a model folder."
    )
    parser.add_argument("folders", nargs="+", help="the checkpoints or models; with --last or --best the run's folder")
    parser.add_argument("--output", required=True, help="where to write; a new or an empty folder")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=int, help="take the run's last so many checkpoints")
    which.add_argument("--best", type=int, help="take its best so many by --metric")
    parser.add_argument("--metric", help="of the validation set, for --best: nll, bleu, chrf ...; by default nll")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)

    from modeling_vanilla.training.arguments import greater_is_better
    from modeling_vanilla.training.averaging import average_checkpoints, best_checkpoints, last_checkpoints

    folders = args.folders
    if args.metric and args.best is None:
        raise ValueError("--metric has no effect without --best")
    if args.last is None and args.best is None and len(folders) < 2:
        raise ValueError(f"{folders[0]} alone: give two or more, or a run's folder with --last or --best")
    if args.last is not None or args.best is not None:
        if len(folders) > 1:
            raise ValueError("--last and --best choose among one run's checkpoints: give its folder alone")
        if args.last is not None:
            folders = last_checkpoints(folders[0], args.last)
        else:
            metric = args.metric or "nll"
            folders = best_checkpoints(folders[0], args.best, metric, greater_is_better(metric))
    average_checkpoints(folders, args.output)
    print(f"{args.output}: the mean of {', '.join(map(str, folders))}", file=sys.stderr)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("average", main, argv)


if __name__ == "__main__":
    sys.exit(run())
