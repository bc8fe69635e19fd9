"""`vanilla evaluate SYSTEM ... --source FILE --target FILE`: translates and scores, and compares systems."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modeling_vanilla.scripts.common import (
    DECODING,
    Parser,
    add_decoding_arguments,
    check_output,
    decoding_settings,
    hide_progress_bars,
    make_folder,
    run_verb,
)


def parser() -> Parser:
    parser = Parser(
        "evaluate",
        "Translates a test set and scores it by sacreBLEU; several systems are compared with the first by paired "
        "bootstrap and approximate randomisation.",
    )
    parser.add_argument(
        "systems", nargs="+", metavar="SYSTEM",
        help="a folder that `vanilla train` wrote, a repository's id on the Hub, or a file of finished translations",
    )  # fmt: skip
    parser.add_argument("--source", required=True, help="the source, a sentence a line (.gz, .xz and .zst too)")
    parser.add_argument("--target", required=True, help="the reference, line by line")
    parser.add_argument("--json", action="store_true", help="print JSON in the place of text")
    parser.add_argument(
        "--measures", nargs="+", default=["bleu", "chrf"],
        help="bleu, chrf, ter; bleu_tok_lc of tokenised, lower-cased text, bleu_compound as in the paper",
    )  # fmt: skip
    parser.add_argument(
        "--tokenize", help="sacreBLEU's tokenizer: 13a, intl, zh, char, none ...; by default zh for a model of ours "
        "that writes Chinese, char for Japanese, else 13a",
    )  # fmt: skip
    parser.add_argument("--lowercase", action="store_true", help="compare without case")
    parser.add_argument("--bootstrap", type=int, default=1000, help="resamplings for the 95 %% interval; 0 for none")
    parser.add_argument("--trials", type=int, default=10_000, help="of approximate randomisation, between systems")
    add_decoding_arguments(parser)
    parser.add_argument("--output", help="write the translations there; of several systems, a folder with a file each")
    parser.add_argument(
        "--save", action="store_true", help="add the figures to the model folder's results.json and to its card"
    )
    parser.add_argument("--device", help="cpu, cuda ...; by default a GPU where there is one")
    return parser


def main(argv: Sequence[str]) -> None:
    options_of = parser()
    args = options_of.parse_args(argv)

    from modeling_vanilla.data.text_files import read_parallel
    from modeling_vanilla.decoding.engines import target_language
    from modeling_vanilla.decoding.translator import as_line
    from modeling_vanilla.evaluation.metrics import compare_systems, corpus_scores, measure, tokenize_option
    from modeling_vanilla.training.output import RESULTS, save_results

    own = tokenize_option(next(filter(None, map(target_language, args.systems)), None))
    other = args.tokenize not in (None, own)
    args.tokenize = args.tokenize or own
    args.measures = list(dict.fromkeys(args.measures))
    for name in args.measures:
        measure(name, tokenize=args.tokenize)  # a mistake there is known before hours of translating
    pairs = list(read_parallel(Path(args.source), Path(args.target), strict=True))
    if not pairs:
        raise ValueError(f"{args.source}: empty, so there is nothing to score")
    names = system_names(args.systems)
    single = len(names) == 1
    if args.trials < 1:
        raise ValueError(f"--trials {args.trials}: a comparison needs at least 1")
    if single and (args.bootstrap < 0 or args.bootstrap == 1):
        raise ValueError(f"--bootstrap {args.bootstrap}: 0 for no interval, or at least 2 resamplings")
    told = [f"--{name}" for name in DECODING if getattr(args, name) != options_of.get_default(name)]
    if told and all(Path(system).is_file() for system in args.systems):
        raise ValueError(f"{', '.join(told)}: the systems are finished translations, which nothing decodes")
    told += ["--lowercase"] * args.lowercase + ["--tokenize"] * other
    if args.save and told:
        raise ValueError(f"--save: its figures would be taken for the model's as it is: leave out {', '.join(told)}")
    if not single and (args.bootstrap < 2 or len(pairs) < 2):
        raise ValueError("a comparison needs --bootstrap of at least 2, and at least two sentences")
    if args.save and not all((Path(system) / RESULTS).is_file() for system in args.systems):
        raise ValueError(f"--save: every system must be a folder that `vanilla train` wrote, with its {RESULTS}")
    if args.output and single and Path(args.output).is_dir():
        raise ValueError(f"--output {args.output}: is a folder; give a file")
    outputs: dict[str, Path] = {}
    if args.output:
        outputs = {name: Path(args.output) if single else Path(args.output) / f"{name}.txt" for name in names}
        for file in outputs.values():
            check_output("--output", str(file), (args.source, args.target, *args.systems))
        make_folder(str(Path(args.output).parent) if single else args.output)
    sources, references = zip(*pairs, strict=True)
    hide_progress_bars()
    systems = {}
    for name, system in zip(names, args.systems, strict=True):
        systems[name] = hypotheses_of(system, sources, args)
        if args.output:
            outputs[name].write_text("".join(f"{as_line(text)}\n" for text in systems[name]), encoding="utf-8")
    options = {name: getattr(args, name) for name in ("measures", "tokenize", "lowercase", "bootstrap")}
    report: dict[str, Any] = {"source": args.source, "target": args.target, "sentences": len(pairs)}
    if single:
        results = {names[0]: corpus_scores(systems[names[0]], references, **options)}
        report |= {"model": args.systems[0], "results": [score.to_dict() for score in results[names[0]]]}
        text = "\n".join(map(str, results[names[0]]))
    else:
        comparisons = compare_systems(systems, references, trials=args.trials, **options)
        results = {name: [c.score for c in comparisons if c.system == name] for name in names}
        report |= {"systems": args.systems, "comparisons": [comparison.to_dict() for comparison in comparisons]}
        text = table(comparisons)
    print(json.dumps(report, indent=2, ensure_ascii=False) if args.json else text)
    if args.save:
        for name, system in zip(names, args.systems, strict=True):
            dataset = data_set_name(args.source)
            save_results(Path(system), [{"dataset": dataset, **score.to_dict()} for score in results[name]])


def data_set_name(source: str) -> str:
    """What training calls a test file: its name without the language and what compresses it."""
    from modeling_vanilla.data.text_files import COMPRESSIONS

    path = Path(source)
    if path.suffix in COMPRESSIONS:
        path = path.with_suffix("")
    return path.stem


def system_names(systems: Sequence[str]) -> list[str]:
    """Each system's last part, or all of it where that would be the same for two; then with its number if need be."""
    if len(set(systems)) < len(systems):
        raise ValueError("the same system is given twice")
    short = [(Path(system).name or system).replace("/", "_") for system in systems]
    whole = [system.replace("/", "_") for system in systems]
    numbered = [f"{number}_{name}" for number, name in enumerate(whole, start=1)]
    return next(names for names in (short, whole, numbered) if len(set(names)) == len(names))


def hypotheses_of(system: str, sources: Sequence[str], args: Any) -> list[str]:
    """A file's lines, or a model's translations."""
    from modeling_vanilla.data.text_files import read_lines
    from modeling_vanilla.decoding.translator import Translator

    if Path(system).is_file():
        lines = list(read_lines(Path(system), strict=True))
        if len(lines) != len(sources):
            raise ValueError(f"{system}: has {len(lines)} lines, but {args.source} has {len(sources)}")
        return lines
    translator = Translator.from_pretrained(system, device=args.device, ensemble=args.ensemble)
    translations = translator.translate(sources, **decoding_settings(args), progress=sys.stderr.isatty())
    return [translation.text for translation in translations]


def table(comparisons: Sequence[Any]) -> str:
    """A row a system and measure, with the p-values of its difference from the first system."""
    rows = [("system", "measure", "score", "p (bootstrap)", "p (randomisation)")]
    for c in comparisons:
        p_values = ("" if p is None else f"{p:.4f}" for p in (c.p_bootstrap, c.p_randomization))
        rows.append((c.system, c.score.name, f"{c.score.value:.2f} ± {c.score.interval:.2f}", *p_values))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    signatures = dict.fromkeys(f"{c.score.name}: {c.score.signature}" for c in comparisons)
    return "\n".join([*lines, "", *signatures])


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("evaluate", main, argv)


if __name__ == "__main__":
    sys.exit(run())
