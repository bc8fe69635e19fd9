"""The probability of given translations."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_vanilla.data.batching import TokenBatchSampler
from modeling_vanilla.errors import TextError
from modeling_vanilla.loss import tokens_per_chunk


class Scored(NamedTuple):
    """The log-probability of a given translation, and of each of its tokens, the end token included, in nats."""

    total: float
    tokens: tuple[tuple[str, float], ...]


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    max_tokens: int = 8192,
) -> list[Scored]:
    """`Translator.score`, of a model and its tokenizer."""
    ids = pair_ids(tokenizer, sources, targets)
    if model.config.position_encoding == "learned":
        most = model.config.max_position_embeddings
        for number, lengths in enumerate(zip(*(map(len, side) for side in ids), strict=True), start=1):
            if max(lengths) > most:
                what = f"has {max(lengths)} tokens a side, but the model has learned positions for {most}: shorten it"
                raise TextError(number, what)
    results: list[Scored] = [Scored(0.0, ())] * len(ids[0])
    for indices in pair_batches(ids, max_tokens):
        batch = [
            tokenizer.pad({"input_ids": [side[i] for i in indices]}, return_tensors="pt", padding_side="right").to(
                model.device
            )
            for side in ids
        ]
        labels = up_to_end(batch[1]["input_ids"], tokenizer)
        decoded = model.model(
            **batch[0],
            decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
            use_cache=False,
        )
        log_probs = token_log_probs(decoded.last_hidden_state, model.lm_head, labels)
        for row, index in zip(log_probs.tolist(), indices, strict=True):
            tokens = tokenizer.convert_ids_to_tokens(ids[1][index])
            pairs = tuple(zip(tokens, row[: len(tokens)], strict=True))
            results[index] = Scored(sum(value for _, value in pairs), pairs)
    return results


def pair_ids(
    tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], targets: Sequence[str]
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of both sides; a `ValueError` where they differ in number, or aren't lists of strings."""
    sources, targets = strings("sources", sources), strings("targets", targets)
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources but {len(targets)} targets: there must be as many")
    if not sources:
        return [], []
    encoded = tokenizer(sources, text_target=targets, verbose=False)
    return encoded["input_ids"], encoded["labels"]


def strings(name: str, texts: Iterable[str]) -> list[str]:
    """The texts as a list, so that they can be gone through twice; a `ValueError` where they are none."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ValueError(f"{name}: must be a list of strings, not {texts!r}: put a single one in brackets")
    texts = list(texts)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise ValueError(f"{name}: must be a list of strings, but number {number} is {text!r}")
    return texts


def check_budget(max_tokens: int) -> None:
    if not isinstance(max_tokens, Integral) or max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens!r}: must be a whole number, for a batch to hold at least 1 token")


def pair_batches(ids: tuple[list[list[int]], list[list[int]]], max_tokens: int) -> Iterable[list[int]]:
    """The indices of batches of at most `max_tokens` padded positions a side, unless one pair alone has more."""
    check_budget(max_tokens)
    sources, targets = ([len(row) for row in side] for side in ids)
    if not sources:
        return []
    return TokenBatchSampler(sources, targets, max_tokens, shuffle=False, longer_alone=True)


def up_to_end(ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int] = ()) -> torch.Tensor:
    """Labels: the ids `(B, T)` with all after the first end token, and padding after other ends, turned to -100."""
    is_end = torch.isin(ids, torch.tensor([tokenizer.eos_token_id, *ends], device=ids.device))
    padding = (ids != tokenizer.pad_token_id).flip(1).cumsum(1).flip(1) == 0
    return ids.masked_fill((is_end.cumsum(1) > is_end) | (padding & ~is_end), -100)


@torch.no_grad()
def token_log_probs(
    hidden_states: torch.Tensor, head: Any, labels: torch.Tensor, ignore_index: int = -100
) -> torch.Tensor:
    """
    log p(label) of every position, of the labels' shape, float32; 0 where a label is `ignore_index`.

    Args:
        hidden_states: the decoder's output, `(..., D)`.
        head: the output projection, with a `weight` `(V, D)`.
        labels: `(...)`.
    """
    keep = labels != ignore_index
    size = tokens_per_chunk(head.weight)
    log_probs = torch.zeros(labels.shape, dtype=torch.float32, device=labels.device)
    log_probs[keep] = torch.cat(
        [
            -nn.functional.cross_entropy(head(h).float(), y, reduction="none")
            for h, y in zip(hidden_states[keep].split(size), labels[keep].split(size), strict=True)  # (N, D), (N)
        ]
    )
    return log_probs


__all__ = ["Scored", "check_budget", "pair_batches", "pair_ids", "score", "strings", "token_log_probs", "up_to_end"]
