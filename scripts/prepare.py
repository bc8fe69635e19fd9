"""`vanilla prepare CORPUS ARCHIVE FOLDER`: a published corpus's archive to the files that its recipe trains on."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import Parser, run_verb


def parser() -> Parser:
    parser = Parser("prepare", "Prepares a published corpus as published results have it.")
    parser.add_argument("corpus", choices=("iwslt14",), help="iwslt14: German-English, lower-cased Moses tokens")
    parser.add_argument("archive", help="what the campaign distributes: de-en.tgz")
    parser.add_argument("folder", help="where train, val and test are written")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)

    from modeling_vanilla.data.iwslt14 import prepare_iwslt14

    counts = prepare_iwslt14(args.archive, args.folder)
    print(f"{args.folder}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()), file=sys.stderr)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("prepare", main, argv)


if __name__ == "__main__":
    sys.exit(run())
