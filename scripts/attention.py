"""`vanilla attention MODEL --source TEXT`: a picture of what the target looks at in the source."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import Parser, hide_progress_bars, run_verb


def parser() -> Parser:
    parser = Parser("attention", "Draws cross attention between a sentence and its translation.")
    parser.add_argument("model", help="a folder that `vanilla train` wrote, or a repository's id on the Hub")
    parser.add_argument("--source", required=True, help="the sentence")
    parser.add_argument("--target", help="its translation; by default the model's own")
    parser.add_argument("--layer", type=int, default=-1, help="of the decoder, from 0, or from the end by -1, -2 ...")
    parser.add_argument("--head", type=int, help="from 0; by default their mean")
    parser.add_argument("--output", default="attention.png", help="the picture: .png, .svg, .pdf ...")
    parser.add_argument("--device", help="cpu, cuda ...; by default a GPU where there is one")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)
    for name in ("source", "target"):
        text = getattr(args, name)
        if text is not None and not text.strip():
            raise ValueError(f"--{name} {text!r}: is empty, so there is nothing to draw: give a sentence")

    from modeling_vanilla.decoding.alignment import draw
    from modeling_vanilla.decoding.translator import Translator

    hide_progress_bars()
    translator = Translator.from_pretrained(args.model, device=args.device, engine="vanilla")
    target = translator.translate([args.source])[0].text if args.target is None else args.target
    draw(translator.model, translator.tokenizer, args.source, target, args.output, layer=args.layer, head=args.head)
    print(f"{args.output}: {args.source} → {target}", file=sys.stderr)


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("attention", main, argv)


if __name__ == "__main__":
    sys.exit(run())
