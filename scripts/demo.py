"""`vanilla demo MODEL`: a page in the browser to try a model on."""

import sys
from collections.abc import Sequence

from modeling_vanilla.scripts.common import Parser, hide_progress_bars, run_verb


def parser() -> Parser:
    parser = Parser("demo", "Serves a page to translate on, with the beam's alternatives and the attention.")
    parser.add_argument("model", help="a folder that `vanilla train` wrote, or a repository's id on the Hub")
    parser.add_argument("--port", type=int, help="by default the first free one from 7860 on")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in")
    parser.add_argument("--share", choices=("yes", "no"), default="no", help="a public address, by Gradio's servers")
    parser.add_argument("--device", help="cpu, cuda ...; by default a GPU where there is one")
    return parser


def main(argv: Sequence[str]) -> None:
    args = parser().parse_args(argv)
    if args.port is not None and not 0 < args.port < 65536:
        raise ValueError(f"--port {args.port}: must be from 1 to 65535")

    from modeling_vanilla.interop.demo import UPLOAD, build

    hide_progress_bars()
    page = build(args.model, args.device)
    try:
        _, local, public = page.launch(
            server_name=args.host,
            server_port=args.port,
            share=args.share == "yes",
            quiet=True,
            max_file_size=UPLOAD,
            prevent_thread_lock=True,
        )
    except OSError as error:
        raise ValueError(f"--host {args.host} --port {args.port}: {error}: choose others") from error
    print(f"{args.model}: {public or local} (Ctrl-C ends it)", file=sys.stderr)
    page.block_thread()


def run(argv: Sequence[str] | None = None) -> int:
    return run_verb("demo", main, argv)


if __name__ == "__main__":
    sys.exit(run())
