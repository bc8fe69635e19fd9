"""`vanilla evaluate MODEL --source FILE --target FILE`: translates and scores."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from modeling_vanilla.scripts.common import Parser, hide_progress_bars, make_folder, run_verb


def parser() -> Parser:
    parser = Parser("evaluate", "Translates a test set and scores it: BLEU and chrF by sacreBLEU.")
    parser.add_argument("model", help="a folder that `vanilla train` wrote, or a repository's id on the Hub")
    parser.add_argument("--source", required=True, help="the source, a sentence a line (.gz, .xz and .zst too)")
    parser.add_argument("--target", required=True, help="the reference, line by line")
    parser.add_argument("--json", action="store_true", help="print JSON in the place of text")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's tokenizer: 13a, intl, zh, char, none ...")
    parser.add_argument("--lowercase", action="store_true", help="compare without case")
    parser.add_argument("--bootstrap", type=int, default=1000, help="resamplings for the 95 %% interval; 0 for none")
    parser.add_argument("--num_beams", type=int, help="by default the model's own")
    parser.add_argument("--length_penalty", type=float, help="by default the model's own")
    parser.add_argument("--output", help="write the translations there")
    parser.add_argument("--device", help="cpu, cuda ...; by default a GPU where there is one")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)

    from modeling_vanilla.data.text_files import read_parallel
    from modeling_vanilla.decoding.translator import Translator, as_line
    from modeling_vanilla.evaluation.metrics import corpus_scores

    pairs = list(read_parallel(Path(args.source), Path(args.target), strict=True))
    if not pairs:
        raise ValueError(f"{args.source}: empty, so there is nothing to score")
    if args.output:
        make_folder(str(Path(args.output).parent))
    sources, references = zip(*pairs, strict=True)
    hide_progress_bars()
    translator = Translator.from_pretrained(args.model, device=args.device)
    translations = translator.translate(
        sources, num_beams=args.num_beams, length_penalty=args.length_penalty, progress=sys.stderr.isatty()
    )
    hypotheses = [translation.text for translation in translations]
    if args.output:
        Path(args.output).write_text("".join(f"{as_line(text)}\n" for text in hypotheses), encoding="utf-8")
    scores = corpus_scores(
        hypotheses, references, tokenize=args.tokenize, lowercase=args.lowercase, bootstrap=args.bootstrap
    )
    if args.json:
        report = {
            "model": args.model,
            "source": args.source,
            "target": args.target,
            "sentences": len(pairs),
            "results": [score.to_dict() for score in scores],
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(str, scores)))


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("evaluate", main, argv)


if __name__ == "__main__":
    sys.exit(run())
