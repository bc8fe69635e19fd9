"""
Decoding: what beams, length penalties and a repetition penalty change, and what the cache costs and saves.

BLEU, the length of translations relative to the references, the share of sentences in which three tokens or more come
twice in a row, and target tokens a second. The cache holds keys and values of every layer: its size is counted in bytes
from its tensors, step by step, and after generating it must be given back.
"""

import gc
import time
import weakref
from typing import Any

import torch
from sacrebleu.metrics import BLEU

from modeling_vanilla.decoding import Translator
from modeling_vanilla.evaluation.metrics import corpus_scores
from modeling_vanilla.experiments.common import Options, Report, axes_of, lines, styled, translator

Figures = dict[str, float]
METRIC = BLEU()
COMPARED = 100  # sentences that are decoded with and without the cache


def repeats(ids: list[int]) -> bool:
    """Whether three tokens or more come twice in a row."""
    return any(
        ids[i : i + n] == ids[i + n : i + 2 * n]
        for n in range(3, len(ids) // 2 + 1)
        for i in range(len(ids) - 2 * n + 1)
    )


def measure(model: Translator, sources: list[str], targets: list[str], **settings: Any) -> Figures:
    start = time.perf_counter()
    texts = [one.text for one in model.translate(sources, **settings)]
    seconds = time.perf_counter() - start
    ids = [model.tokenizer(text)["input_ids"] for text in texts]
    score = METRIC.corpus_score(texts, [targets])
    (bootstrapped,) = corpus_scores(texts, targets, measures=["bleu"])
    return {
        "BLEU": score.score, "interval": bootstrapped.interval or 0.0, "length": score.sys_len / score.ref_len,
        "repeats": 100 * sum(map(repeats, ids)) / len(ids), "speed": sum(map(len, ids)) / seconds,
    }  # fmt: skip


@torch.inference_mode()
def cache_bytes(model: Translator, source: str, steps: int) -> tuple[list[int], bool]:
    """Bytes of one sentence's cache after each step, and whether they are free when it is let go."""
    device = model.model.device
    batch = model.tokenizer([source], return_tensors="pt").to(device)
    ids = torch.full((1, 1), model.model.config.decoder_start_token_id, device=device)
    encoded, cache, sizes = model.model.get_encoder()(**batch), None, []
    for _ in range(steps):
        given = {
            "encoder_outputs": encoded,
            "attention_mask": batch["attention_mask"],
            "decoder_input_ids": ids[:, -1:],
        }
        outputs = model.model(**given, cache=cache, use_cache=True)
        cache, ids = outputs.cache, torch.cat((ids, outputs.logits[:, -1:].argmax(-1)), 1)
        sizes.append(sum(tensor.nbytes for tensor in tensors(cache)))
    watched = [weakref.ref(tensor) for tensor in tensors(cache)]
    del outputs, cache
    gc.collect()
    return sizes, not any(one() is not None for one in watched)


def tensors(cache: Any) -> list[torch.Tensor]:
    parts = (cache.self_attention_cache, cache.cross_attention_cache)
    return [tensor for part in parts for layer in part.layers for tensor in (layer.keys, layer.values)]


def run(options: Options) -> Report:
    folder, _ = translator(options)
    model = Translator.from_pretrained(folder)
    sources, targets = lines(options, "test", options.choose(40, 1000))
    found: dict[str, Figures] = {}
    model.translate(sources[:5], num_beams=4)  # what is made once is made
    for beams in options.choose((1, 2, 4), (1, 2, 4, 8, 16)):
        found[f"beam {beams}"] = measure(model, sources, targets, num_beams=beams)
    for kind in ("power", "paper"):
        for alpha in options.choose((0.0, 1.0, 2.0), (0.0, 0.5, 1.0, 1.5, 2.0)):
            settings: dict[str, Any] = {"num_beams": 4, "length_penalty": alpha, "length_penalty_type": kind}
            found[f"{kind} {alpha:g}"] = measure(model, sources, targets, **settings)
    for penalty in (1.0, 1.1, 1.3):
        found[f"repetition {penalty:g}"] = measure(model, sources, targets, num_beams=4, repetition_penalty=penalty)
    names: list[str] = []
    for cached in (True, False):
        name = f"the library's search {'with' if cached else 'without'} cache, {len(sources[:COMPARED])} sentences"
        names.append(name)
        found[name] = measure(model, sources[:COMPARED], targets[:COMPARED], num_beams=4, use_cache=cached)
    steps = options.choose(12, 60)
    sizes, returned = cache_bytes(model, max(sources, key=len), steps)
    rows = [
        (name, f"{x['BLEU']:.2f}", f"{x['length']:.3f}", f"{x['repeats']:.1f}", f"{x['speed']:,.0f}")
        for name, x in found.items()
    ]
    figure, axes = axes_of(3)
    beams = [name for name in found if name.startswith("beam")]
    axes[0].plot(
        [int(name.split()[1]) for name in beams],
        [found[name]["BLEU"] for name in beams],
        **dict(styled(beams))[beams[0]],
    )
    axes[0].set(xlabel="beams", ylabel="BLEU", xscale="log")
    axes[0].set_xticks([int(name.split()[1]) for name in beams], [name.split()[1] for name in beams])
    axes[0].minorticks_off()
    for kind, style in styled(["power", "paper"]):
        points = [(float(name.split()[1]), x["length"]) for name, x in found.items() if name.startswith(kind)]
        axes[1].plot(*zip(*points, strict=True), label="n^alpha" if kind == "power" else "((5 + n) / 6)^alpha", **style)
    axes[1].set(xlabel="alpha", ylabel="length against the reference")
    axes[1].legend(fontsize="small")
    axes[2].plot(range(1, steps + 1), [size / 1e3 for size in sizes], color="black")
    axes[2].set(xlabel="target tokens", ylabel="cache of one sentence (kB)", ylim=(0, None))
    best = max((name for name in found if name.startswith("beam")), key=lambda name: found[name]["BLEU"])
    growth = (sizes[-1] - sizes[0]) / (steps - 1)
    text = (
        f"Greedy search reaches {found['beam 1']['BLEU']:.2f} BLEU, the best beam, {best.split()[1]}, "
        f"{found[best]['BLEU']:.2f} (95 % interval by bootstrap ±{found[best]['interval']:.2f}). "
        f"From alpha 0 to 2 the length goes from {found['power 0']['length']:.3f} to {found['power 2']['length']:.3f} "
        f"of the reference's by n^alpha, and to {found['paper 2']['length']:.3f} by the paper's. A repetition penalty "
        f"of 1.3 gives {found['repetition 1.3']['BLEU']:.2f} BLEU against {found['repetition 1']['BLEU']:.2f}. With "
        f"the cache the library's search is {found[names[0]]['speed'] / found[names[1]]['speed']:.1f} times as fast. "
        f"The cache of the longest sentence begins at {sizes[0] / 1e3:.1f} kB and grows by {growth / 1e3:.2f} kB a "
        f"token and beam; afterwards it is {'given back' if returned else 'still held'}."
    )
    header = ("search", "BLEU", "length ratio", "repeating (%)", "target tokens a second, timed once")
    what = f"{options.text()}, {len(sources)} sentences"
    return Report([(header, rows)], figure, text, f"{what}; penalties and caches with beam 4; {METRIC.get_signature()}")
