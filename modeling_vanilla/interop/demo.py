"""A page in the browser to try a translation model on (Gradio, an extra)."""

import base64
import html
import io
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modeling_vanilla.decoding.alignment import picture
from modeling_vanilla.decoding.engines import engine_of
from modeling_vanilla.decoding.lengths import join_pieces, split_text
from modeling_vanilla.decoding.translator import Translator

if TYPE_CHECKING:
    from gradio import Blocks

LONGEST = 10_000  # characters that are translated at once
WIDEST = 80  # tokens of a sentence, or of its translation, whose attention is still drawn
BEAMS, MEAN = 16, "mean"
UPLOAD = 1  # byte, for `launch(max_file_size=...)`: Gradio takes files of any size, and the page needs none
SCORES = "What the beams found. Score: log-probability (nats) over the length to the power of the length penalty"


class Sentence(NamedTuple):
    """What was translated in one piece: as a rule a line, a part of it where that is too long for the model."""

    source: str
    n_best: tuple[tuple[str, float], ...]


def translate(translator: Translator, text: str, num_beams: int) -> tuple[str, list[Sentence]]:
    """
    The translation of a text's lines, each by itself (empty ones stay empty), and its sentences with what beams found.

    Raises:
        ValueError: for a text that is too long.
    """
    if len(text) > LONGEST:
        raise ValueError(
            f"the text has {len(text):,} characters, and this page takes {LONGEST:,}: shorten it, or use "
            "`vanilla translate`, which takes files"
        )
    limit = translator.tokenizer.model_max_length

    def fits(piece: str) -> bool:
        return len(translator.tokenizer(piece, verbose=False).input_ids) <= limit

    lines = [split_text(line, fits) if line.strip() else [] for line in text.replace("\r\n", "\n").split("\n")]
    sources = [piece for pieces in lines for piece in pieces]
    found = translator.translate(sources, num_beams=num_beams, n_best=num_beams, progress=False)
    texts = iter(found)
    joined = [join_pieces([next(texts).text for _ in pieces]) for pieces in lines]
    return "\n".join(joined), [Sentence(source, t.n_best) for source, t in zip(sources, found, strict=True)]


def alternatives(sentences: list[Sentence]) -> list[tuple[int, int, str, str]]:
    """A row for each thing found: the sentence's number, rank, score, translation."""
    found = ((number, sentence.n_best) for number, sentence in enumerate(sentences, 1))
    return [(number, rank, f"{score:.3f}", t) for number, best in found for rank, (t, score) in enumerate(best, 1)]


def attention(translator: Translator, sentence: Sentence, layer: int, head: int | str) -> str:
    """
    What the best translation looks at in its source, as an image in HTML; for what is too wide, a line that says so.
    The image's text stays text, so that the reader's browser finds the letters of any script.
    """
    source, target = sentence.source, sentence.n_best[0][0]
    ids = translator.tokenizer(source, text_target=target, verbose=False)
    longest = max(len(ids["input_ids"]), len(ids["labels"]))
    if longest > WIDEST:
        return f"<p>This sentence or its translation has {longest} tokens; up to {WIDEST} are drawn.</p>"
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": ""}), warnings.catch_warnings(), io.BytesIO() as file:
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        one = head if isinstance(head, int) else None
        drawing = picture(translator.model, translator.tokenizer, source, target, layer, one)
        drawing.savefig(file, format="svg", metadata={"Date": None})
        data = base64.b64encode(file.getvalue()).decode("ascii")
    what = html.escape(f"Attention of decoder layer {layer}, head {head}, from {target} to {source}")
    image = f'<img alt="{what}" src="data:image/svg+xml;base64,{data}" style="max-width: none">'
    return f'<div style="overflow-x: auto">{image}</div>'


def build(model: str | Path, device: str | None = None) -> "Blocks":
    """
    The page of a model; its `launch()` serves it. Nothing on it comes from another machine, and nothing is told to one.

    Args:
        model: a folder that `vanilla train` wrote, or a repository's id on the Hub.
        device: None takes a GPU where there is one.

    Raises:
        ValueError: without Gradio; as `Translator.from_pretrained`.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    try:
        import gradio as gr
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError('the page needs Gradio and matplotlib: pip install "vanilla-transformer[demo]"') from error
    if engine_of(model) != "vanilla":
        raise ValueError(f"{model}: was converted, and shows no attention: give the model that it was made from")
    translator = Translator.from_pretrained(model, device=device)
    name = Path(model).absolute().name if Path(model).is_dir() else str(model)
    config, usual = translator.model.config, translator.generation_config.num_beams or 1
    layers, heads = range(config.decoder_layers), range(config.decoder_attention_heads)

    def run(text: str, num_beams: int) -> tuple[str, list[Any], list[Sentence], Any]:
        try:
            translated, sentences = translate(translator, text or "", int(num_beams))
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error
        choices = [(f"{number}: {sentence.source[:100]}", number - 1) for number, sentence in enumerate(sentences, 1)]
        which = gr.Dropdown(choices, value=0 if choices else None, visible=len(choices) > 1)
        return translated, alternatives(sentences), sentences, which

    def draw(sentences: list[Sentence], which: int | None, layer: int, head: int | str) -> str:
        return attention(translator, sentences[which or 0], layer, head) if sentences else ""

    with gr.Blocks(title=f"{name}: translate", analytics_enabled=False) as page:
        gr.Markdown(f"# {name}\nEach line is translated by itself.")
        sentences = gr.State([])
        with gr.Row():
            text = gr.Textbox(label="Text", lines=4, autofocus=True, elem_id="text")
            translation = gr.Textbox(label="Translation", lines=4, interactive=False, elem_id="translation")
        with gr.Row():
            num_beams = gr.Slider(1, max(BEAMS, usual), usual, step=1, label="Beams", info="1 is greedy search")
            button = gr.Button("Translate", variant="primary", elem_id="translate")
        rows = gr.Dataframe(
            headers=["sentence", "rank", "score", "translation"], datatype=["number", "number", "str", "str"],
            column_widths=["15%", "10%", "12%", "63%"], wrap=True, interactive=False, label=SCORES, elem_id="rows",
        )  # fmt: skip
        gr.Markdown("### What each word of the translation looks at in the text")
        which = gr.Dropdown([], label="Sentence", visible=False, elem_id="sentence")
        with gr.Row():
            layer = gr.Radio(list(layers), value=max(0, len(layers) - 2), label="Decoder layer", elem_id="layer")
            head = gr.Radio([MEAN, *heads], value=MEAN, label="Head", elem_id="head")
        image = gr.HTML(elem_id="attention")
        # One at a time: a search packs the model's weights for itself.
        settings: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
        shown = {"fn": draw, "inputs": [sentences, which, layer, head], "outputs": image, **settings}
        gr.on(
            [button.click, text.submit], run, [text, num_beams], [translation, rows, sentences, which],
            api_name="translate", **settings,
        ).success(**shown, api_name=False)  # fmt: skip
        gr.on([which.input, layer.input, head.input], **shown, api_name=False)
    return page


__all__ = ["build"]
