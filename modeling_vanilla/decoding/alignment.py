"""Which source word a target word was made from, read out of cross attention."""

import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_vanilla.decoding.scoring import pair_batches, pair_ids, strings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

Alignment = tuple[tuple[int, int], ...]  # source word, target word; both counted from 0


@torch.inference_mode()
def cross_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], targets: Sequence[str],
    layer: int,
) -> list[torch.Tensor]:  # fmt: skip
    """
    What each target token looks at in the source when it is predicted, in one decoder layer: `(heads, T, S)` in
    float32, a tensor a pair, the end tokens included. Of the other layers, and the encoder, no attention is kept.

    Raises:
        ValueError: when there is no such layer.
    """
    decoder = model.get_decoder()
    depth = len(decoder.layers)
    if not -depth <= layer < depth:
        raise ValueError(f"layer={layer}: the decoder has {depth} layers, from 0 to {depth - 1}")
    batch = tokenizer(list(sources), text_target=list(targets), return_tensors="pt", padding=True, padding_side="right",
                      verbose=False)  # fmt: skip
    source, mask, labels = (batch[name].to(model.device) for name in ("input_ids", "attention_mask", "labels"))
    found: list[torch.Tensor] = []  # (B, heads, T, S)
    hook = decoder.layers[layer].encoder_attn.register_forward_hook(lambda *called: found.append(called[-1][1]))
    try:
        decoder(
            input_ids=model.prepare_decoder_input_ids_from_labels(labels), encoder_attention_mask=mask,
            encoder_hidden_states=model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state,
            use_cache=False, attn_implementation="eager",  # which alone gives the weights
        )  # fmt: skip
    finally:
        hook.remove()
    S = batch["attention_mask"].sum(1).tolist()
    T = [len(ids) for ids in tokenizer(text_target=list(targets), verbose=False).input_ids]
    return [found[0][b, :, : T[b], : S[b]].float() for b in range(len(sources))]


def words(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """
    The word, counted from 0, that each token of the text belongs to; -1 for the end token. Words end at spaces, so that
    a Chinese or Japanese sentence is one.
    """
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
    special = set(tokenizer.all_special_ids)
    numbers = []
    for token, (_, stop) in zip(encoded.input_ids, encoded.offset_mapping, strict=True):
        numbers.append(-1 if token in special else sum(end < stop for end in ends))
    return [number if number < len(ends) else -1 for number in numbers]


def align(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], targets: Sequence[str],
    layer: int | None = None, max_tokens: int = 8192,
) -> list[Alignment]:  # fmt: skip
    """
    For each target word the source word that its tokens look at most, in the mean over the heads of a decoder layer.

    Args:
        layer: counted from 0, or from the end by negative numbers. Default: the last but one, which aligns best (Garg
            et al. 2019, arXiv 1909.02074), or the only one.
        max_tokens: padded positions a side that a batch holds at most, and a hundredth of its attention weights a head.

    Raises:
        ValueError: when the two differ in number, or there is no such decoder layer; for a tokenizer without a fast
            version, which alone says where its tokens are.
    """
    if not tokenizer.is_fast:
        raise ValueError("alignments need a tokenizer that says where its tokens are in the text: a fast one")
    sources, targets = strings("sources", sources), strings("targets", targets)
    ids = pair_ids(tokenizer, sources, targets)
    chosen = (-2 if len(model.get_decoder().layers) > 1 else -1) if layer is None else layer
    results: list[Alignment] = [()] * len(sources)
    for batch in pair_batches(ids, max_tokens):
        S, T = (max(len(side[i]) for i in batch) for side in ids)
        size = max(1, 100 * max_tokens // (S * T))
        for indices in (batch[start : start + size] for start in range(0, len(batch), size)):
            source, target = ([side[i] for i in indices] for side in (sources, targets))
            for index, attention in zip(
                indices, cross_attention(model, tokenizer, source, target, chosen), strict=True
            ):
                of = (words(side[index], tokenizer) for side in (sources, targets))
                results[index] = of_words(attention.mean(0), *of)
    return results


def of_words(weights: torch.Tensor, source: list[int], target: list[int]) -> Alignment:
    """The alignment by attention `(T, S)` of tokens, which belong to the words that `words` says."""
    S, T = (torch.tensor(numbers, device=weights.device) for numbers in (source, target))
    if (S < 0).all() or (T < 0).all():
        return ()
    columns = torch.zeros(len(T), int(S.max()) + 1, device=weights.device)
    columns.index_add_(1, S[S >= 0], weights[:, S >= 0])
    rows = torch.zeros(int(T.max()) + 1, columns.shape[1], device=weights.device)
    rows.index_add_(0, T[T >= 0], columns[T >= 0])
    return tuple((int(s), t) for t, s in enumerate(rows.argmax(1)))


def pharaoh(alignment: Alignment) -> str:
    """Pairs as "source-target", with spaces between them."""
    return " ".join(f"{source}-{target}" for source, target in sorted(alignment))


def picture(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str, layer: int = -1,
    head: int | None = None,
) -> "Figure":  # fmt: skip
    """
    A pair's cross attention, target tokens over source tokens, as a figure of matplotlib's.

    Args:
        layer, head: counted from 0, or from the end by negative numbers; without a head their mean.

    Raises:
        ValueError: without matplotlib; for a layer or head that isn't there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('drawing needs matplotlib: pip install "vanilla-transformer[plots]"') from error
    attention = cross_attention(model, tokenizer, [source], [target], layer)[0].cpu()
    heads = len(attention)
    if head is not None and not -heads <= head < heads:
        raise ValueError(f"head={head}: there are {heads}, from 0 to {heads - 1}")
    weights = attention.mean(0) if head is None else attention[head]  # (T, S)
    rows, columns = (
        [token.replace(" ", "\u2423").replace("$", r"\$") for token in tokenizer.convert_ids_to_tokens(ids)]
        for ids in (tokenizer(text_target=target).input_ids, tokenizer(source).input_ids)
    )
    figure = Figure(figsize=(2 + 0.35 * len(columns), 1.5 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(weights.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("source tokens")
    axes.set_ylabel("target tokens, as they are predicted")
    which = "mean of the heads" if head is None else f"head {head % heads}"
    axes.set_title(f"decoder layer {layer % len(model.get_decoder().layers)}, {which}", fontsize="medium")
    figure.colorbar(image, label="attention weight")
    return figure


def draw(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str, output: str | Path,
    layer: int = -1, head: int | None = None,
) -> None:  # fmt: skip
    """
    Draws `picture` into a file whose name says its format, with the fonts that have the letters. In an .svg the text
    stays text, so that whatever shows it finds them.

    Raises:
        ValueError: as `picture`; when the file has no ending that says its format, or can't be written.
    """
    if not Path(output).suffix or Path(output).is_dir():
        raise ValueError(f"{output}: must be a file's name that says its format: .png, .svg, .pdf ...")
    figure = picture(model, tokenizer, source, target, layer, head)
    from matplotlib import rc_context

    tokens = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    families, missing = fonts_with("".join(label.get_text() for label in tokens))
    for label in tokens:
        label.set_fontfamily(families)
    if missing and Path(output).suffix.lower() != ".svg":
        logger.warning("%s: no font here has %s: an .svg leaves the letters to what shows it", output, missing)
    try:
        with rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(output, dpi=150)
    except (OSError, ValueError) as error:
        raise ValueError(f"{output}: can't be written: {error}") from error


def fonts_with(text: str) -> tuple[list[str], str]:
    """Families that have a text's letters for matplotlib, the usual ones first; and the letters that no font has."""
    from matplotlib import font_manager, rcParams

    def without(letters: set[str], file: str) -> set[str]:
        return {letter for letter in letters if ord(letter) not in font_manager.get_font(file).get_charmap()}

    families = list(rcParams["font.family"])
    missing = without(
        {letter for letter in text if letter.isprintable()}, font_manager.findfont(font_manager.FontProperties())
    )
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: (font.style, font.weight) != ("normal", 400)):
        if missing and not font.name.startswith("Last Resort"):  # which has a box for each letter
            left = without(missing, font.fname)
            families += [font.name] * (left < missing)
            missing = left
    return families, "".join(sorted(missing))


__all__ = ["align", "cross_attention", "draw", "pharaoh", "picture", "words"]
