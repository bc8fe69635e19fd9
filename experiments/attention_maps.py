"""
What attention looks at: every head of a trained model on ten sentences, and the alignment read from it.

Per layer and head: how spread its weights are (entropy over that of uniform weights) and how often the largest weight
is on the token itself, the one before or the one after (in cross attention: on the source token at the same place). The
alignment is compared with a dictionary counted from the training text (Dice's coefficient of words in the same pairs),
next to a diagonal alignment.
"""

import collections
from typing import Any

import torch
from matplotlib.figure import Figure

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.decoding import Translator
from modeling_vanilla.decoding.alignment import align
from modeling_vanilla.experiments.common import Options, Report, lines, translator

NEAR = (-1, 0, 1)
Pairs = list[tuple[int, int]]


@torch.inference_mode()
def maps(model: VanillaForConditionalGeneration, tokenizer, source: str, target: str) -> dict[str, torch.Tensor]:
    """Weights `(layers, heads, queries, keys)` of each kind of attention on a pair."""
    batch = tokenizer([source], text_target=[target], return_tensors="pt")
    outputs = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"], output_attentions=True)
    kinds = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    return {kind: torch.cat(list(getattr(outputs, name))) for kind, name in kinds.items()}


def spread(weights: torch.Tensor, causal: bool) -> torch.Tensor:
    """`(layers, heads)`: mean entropy over the largest possible, from 0 (one key) to 1 (all alike)."""
    queries, keys = weights.shape[-2:]
    room = torch.arange(1, queries + 1) if causal else torch.full((queries,), keys)
    entropy = -torch.where(weights > 0, weights * weights.log(), 0.0).sum(-1)  # (layers, heads, queries)
    real = room > 1
    return (entropy[..., real] / room[real].log()).mean(-1)


def nearness(weights: torch.Tensor) -> torch.Tensor:
    """`(layers, heads, 3)`: how often the largest weight is one before, at, or one after the query's place."""
    queries, keys = weights.shape[-2:]
    places = torch.arange(queries) * (keys - 1) / max(queries - 1, 1)
    offset = weights.argmax(-1) - places.round().long()
    return torch.stack([(offset == near).float().mean(-1) for near in NEAR], -1)


def dictionary(sources: list[str], targets: list[str], best: int = 3) -> dict[str, set[str]]:
    """For each target word, the source words that come with it most: 2 together / (one + other)."""
    together: collections.Counter[tuple[str, str]] = collections.Counter()
    one: collections.Counter[str] = collections.Counter()
    other: collections.Counter[str] = collections.Counter()
    for source, target in zip(sources, targets, strict=True):
        left, right = set(source.split()), set(target.split())
        one.update(left)
        other.update(right)
        together.update((s, t) for t in right for s in left)
    ranked: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)
    for (s, t), count in together.items():
        ranked[t].append((2 * count / (one[s] + other[t]), s))
    return {t: {s for _, s in sorted(rows, reverse=True)[:best]} for t, rows in ranked.items()}


def agreement(pairs: list[Pairs], sources: list[str], targets: list[str], known: dict[str, set[str]]) -> float:
    """Share of aligned words that the dictionary gives for each other, of those that it knows."""
    right = total = 0
    for aligned, source, target in zip(pairs, sources, targets, strict=True):
        s, t = source.split(), target.split()
        words = [(s[i], t[j]) for i, j in aligned if t[j] in known]
        right, total = right + sum(a in known[b] for a, b in words), total + len(words)
    return right / max(total, 1)


def diagonal(source: str, target: str) -> Pairs:
    S, T = len(source.split()), len(target.split())
    return [(round(j * (S - 1) / max(T - 1, 1)), j) for j in range(T)]


def drawn(found: dict[str, torch.Tensor], title: str) -> Figure:
    """All heads of all layers on one pair: a block a kind, a row a layer."""
    layers, heads = found["cross"].shape[:2]
    figure = Figure(figsize=(1.1 * 3 * heads + 1, 1.1 * layers + 1), layout="constrained")
    blocks: Any = figure.subfigures(1, 3)
    for block, (kind, part) in zip(blocks, found.items(), strict=True):
        axes = block.subplots(layers, heads, squeeze=False)
        block.suptitle(f"{kind}: a row a layer, a column a head", fontsize="small")
        for layer in range(layers):
            for head in range(heads):
                axes[layer, head].imshow(part[layer, head], cmap="Greys", vmin=0, vmax=1, aspect="auto")
                axes[layer, head].set(xticks=[], yticks=[])
        axes[layers - 1, 0].set(xlabel="keys", ylabel="queries")
    figure.suptitle(title, fontsize="medium")
    return figure


def run(options: Options) -> Report:
    folder, _ = translator(options)
    model = VanillaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = Translator.from_pretrained(folder).tokenizer
    sources, _ = lines(options, "test", 10)
    said = [one.text for one in Translator(model, tokenizer).translate(sources)]
    found = [maps(model, tokenizer, source, text) for source, text in zip(sources, said, strict=True)]
    rows, sharpest = [], {}
    for kind in ("encoder", "decoder", "cross"):
        spreads = torch.stack([spread(one[kind], kind == "decoder") for one in found]).mean(0)
        near = torch.stack([nearness(one[kind]) for one in found]).mean(0)
        for layer in range(len(spreads)):
            for head in range(spreads.shape[1]):
                shares = (f"{100 * x:.0f}" for x in near[layer, head].tolist())
                rows.append((kind, layer, head, f"{spreads[layer, head]:.2f}", *shares))
        least = divmod(int(spreads.argmin()), spreads.shape[1])
        sharpest[kind] = f"{kind} layer {least[0]} head {least[1]} ({spreads.min():.2f})"
    known = dictionary(*lines(options, "train", options.choose(2000, 29_000)))
    read = agreement([list(pairs) for pairs in align(model, tokenizer, sources, said)], sources, said, known)
    straight = agreement([diagonal(*pair) for pair in zip(sources, said, strict=True)], sources, said, known)
    text = f"The sharpest heads, with their entropy relative to uniform weights: {', '.join(sharpest.values())}. "
    if options.data is None:
        text += "There is no alignment of words: the built-in corpus is Chinese, without spaces."
    else:
        text += f"Of the aligned target words that the dictionary knows {100 * read:.0f} % look at one of the three "
        text += f"source words that it gives for them, by a diagonal alignment {100 * straight:.0f} %."
    header = ("attention", "layer", "head", "relative entropy", "one before (%)", "same place (%)", "one after (%)")
    shown = min(range(len(said)), key=lambda number: len(said[number]))
    title = f"{sources[shown]}\n{said[shown]}".replace("$", r"\$")
    return Report([(header, rows)], drawn(found[shown], title), text, f"ten test sentences of {options.text()}")
