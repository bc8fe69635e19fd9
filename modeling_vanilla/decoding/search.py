"""
Greedy and beam search from which finished sentences depart, for `generate(custom_generate=search)`.

Shapes: `B` sentences still searched, `K` beams, `C` candidates a sentence, `V` vocabulary, `L` tokens.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from modeling_vanilla.decoding.cache import RoomyLayer
from modeling_vanilla.decoding.packing import packed

SEARCH_NEEDS = {"encoder_outputs", "attention_mask", "cache", "use_cache"}  # of what generate() hands on
NEVER = -1e9  # the score of what can't be chosen, as in the library's search


def search(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    limits: torch.Tensor | None = None,
    **model_kwargs: Any,
) -> GenerateBeamEncoderDecoderOutput:
    """
    The library's beam search, sentence by sentence the same: `early_stopping`, `length_penalty`, processors and
    criteria mean what they mean there. With one beam it is greedy search. A sentence leaves the batch when nothing can
    improve its result, so that the last ones don't hold up all.

    Args:
        limits: `(B)`, the most new tokens of each sentence, the last of which is its end.
        others: what `generate()` hands to a decoding function.

    Returns:
        `sequences`, the prompts included, padded with the padding token, and `sequences_scores`:
        `num_return_sequences` of each sentence, best first.
    """
    config, K, start, device = generation_config, generation_config.num_beams, input_ids.shape[1], input_ids.device
    alpha, early, max_length = config.length_penalty, config.early_stopping, config.max_length
    alpha = 1.0 if alpha is None else alpha
    ends, B = config._eos_token_tensor, len(input_ids) // K
    C = 1 if K == 1 else K * max(2, 1 + (0 if ends is None else len(ends)))  # enough to go on if K of them end
    criteria = StoppingCriteriaList(
        one for one in stopping_criteria if not isinstance(one, EosTokenCriteria | MaxLengthCriteria)
    )
    first_limit = max_length if limits is None else int(limits.min())
    limits = torch.full((B,), max_length - start, device=device) if limits is None else limits.to(device)

    source, mask = model_kwargs["encoder_outputs"].last_hidden_state, model_kwargs.get("attention_mask")
    needs_scores = K > 1 or config.return_dict_in_generate
    decoder, cache, fill = model.get_decoder(), model_kwargs["cache"], config._pad_token_tensor
    tokens = input_ids.new_full((B, K, max_length), 0 if fill is None else int(fill))  # of running beams
    tokens[:, :, :start] = input_ids.view(B, K, start)
    scores = torch.zeros(B, K, device=device)
    scores[:, 1:] = NEVER  # at first all beams are one
    ended, ended_scores = tokens, torch.full((B, K), NEVER, device=device)  # the best that have ended, (B, K, L)
    results, result_scores = tokens.clone(), ended_scores.clone()
    sentences = torch.arange(B, device=device)  # those still searched
    new_ids = input_ids
    cache.self_attention_cache.layers = [RoomyLayer() for _ in decoder.layers]
    for length in range(start, max_length):
        states = decoder(
            new_ids, encoder_hidden_states=source, encoder_attention_mask=mask, cache=cache, use_cache=True
        )
        logits = model.lm_head(states.last_hidden_state[:, -1]).float()  # (B * K, V)
        if logits_processor and K > 1:
            values, ids = largest(logits_processor(tokens[:, :, :length].flatten(0, 1), logits.log_softmax(-1)), C)
        else:
            normaliser = logits.logsumexp(-1, keepdim=True) if needs_scores else 0.0
            if logits_processor:  # which greedy search hands logits
                logits = logits_processor(tokens[:, 0, :length], logits)
            values, ids = largest(logits, C)
            values = values - normaliser
        values, ids = values.view(B, K, -1) + scores[:, :, None], ids.view(B, K, -1)  # (B, K, C)
        if length - start + 1 >= first_limit and ends is not None:
            over = length - start + 1 >= limits
            values[over], ids[over] = -torch.inf, ends[0]
            values[over, :, 0] = scores[over]
        values, chosen = values.flatten(1).topk(C)  # (B, C)
        beams, ids = chosen // ids.shape[2], ids.flatten(1).gather(1, chosen)
        candidates = tokens.gather(1, beams[:, :, None].expand(-1, -1, max_length))  # (B, C, L)
        candidates[:, :, length] = ids

        stops = torch.full_like(ids, length + 1 >= max_length, dtype=torch.bool)
        if ends is not None:
            stops |= (ids[:, :, None] == ends).any(-1)
        if criteria:
            stops |= criteria(candidates[:, :, : length + 1].flatten(0, 1), None).view(B, C)
        # Of those that end, the first K may be results; of those that don't, the best K go on.
        new_scores = (values / (length + 1 - start) ** alpha).masked_fill(~stops, NEVER)[:, :K]
        ended_scores, order = torch.cat((ended_scores, new_scores), 1).topk(K)
        ended = torch.cat((ended, candidates[:, :K]), 1).gather(1, order[:, :, None].expand(-1, -1, max_length))
        scores, order = values.masked_fill(stops, NEVER).topk(K)
        tokens = candidates.gather(1, order[:, :, None].expand(-1, -1, max_length))
        rows = beams.gather(1, order) + K * torch.arange(B, device=device)[:, None]  # (B, K)

        has_all = (ended_scores > NEVER / 2).all(1)
        lengths = limits if early == "never" and alpha > 0 else length + 1 - start
        leaves = stops.all(1) | (has_all & (scores[:, 0] / lengths**alpha <= ended_scores[:, -1]))
        if early is True or K == 1:
            leaves |= has_all
        if leaves.any():
            results[sentences[leaves]], result_scores[sentences[leaves]] = ended[leaves], ended_scores[leaves]
            stays = (~leaves).nonzero()[:, 0]
            if not len(stays):
                break
            B, sentences, limits, source = len(stays), sentences[stays], limits[stays], source[stays]
            tokens, scores, rows, ended, ended_scores = (x[stays] for x in (tokens, scores, rows, ended, ended_scores))
            mask = None if mask is None else mask[stays]
            cache.cross_attention_cache.reorder_cache(stays)
        if K > 1 or leaves.any():
            cache.self_attention_cache.reorder_cache(rows.flatten())
        new_ids = tokens[:, :, length].reshape(-1, 1)

    best = config.num_return_sequences
    results = results[:, :best].flatten(0, 1)
    longest = int((results != results.new_tensor(0 if fill is None else int(fill))).nonzero()[:, 1].max()) + 1
    return GenerateBeamEncoderDecoderOutput(
        sequences=results[:, : max(longest, start + 1)], sequences_scores=result_scores[:, :best].flatten()
    )


def largest(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """
    `x.topk(count)` of `(N, V)`, in a third of the time on a CPU: the largest are in the blocks of the largest maxima.
    """
    V = x.shape[1]
    size = next((size for size in (64, 32, 16) if V % size == 0), 1)
    if x.device.type != "cpu" or size == 1 or V // size < 2 * count:
        return x.topk(min(count, V))
    blocks = x.unflatten(1, (-1, size))  # (N, V / size, size)
    best = blocks.amax(2).topk(count).indices  # (N, count)
    values, index = blocks.gather(1, best[:, :, None].expand(-1, -1, size)).flatten(1).topk(count)
    return values, best.gather(1, index // size) * size + index % size


def take_over(model_class: type[PreTrainedModel]) -> None:
    """Has `generate()` of the class search by `search`, where that is what was asked for; else by the library."""
    for name in ("_sample", "_beam_search"):
        setattr(model_class, name, or_search(getattr(model_class, name), model_class))


def or_search(decode: Callable, model_class: type[PreTrainedModel]) -> Callable:
    """The library's decoding function, but `search` for what that does as well and sooner."""

    @wraps(decode)
    def decode_or_search(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        arguments = (model, input_ids, logits_processor, stopping_criteria, generation_config)
        others = {name for name, value in kwargs.items() if value is not None and value is not False}
        if others <= SEARCH_NEEDS and is_plain_search(model, model_class, generation_config, kwargs.get("cache")):
            with packed(model, len(input_ids)):
                return search(*arguments, **kwargs).sequences
        return decode(*arguments, **kwargs)

    return decode_or_search


def is_plain_search(
    model: PreTrainedModel, model_class: type[PreTrainedModel], config: GenerationConfig, cache: Any
) -> bool:
    """Whether tokens alone are wanted, of a model that nobody has changed, from a new cache that grows."""
    changed = {"forward", "prepare_inputs_for_generation"} & vars(model).keys()
    if type(model) is not model_class or changed or model._forward_hooks or model._forward_pre_hooks:
        return False
    if config.do_sample or config.return_dict_in_generate or config.prefill_chunk_size:
        return False
    if not isinstance(cache, EncoderDecoderCache) or getattr(cache, "_is_user_defined", False):
        return False
    return all(type(half) is DynamicCache and not half.offloading for half in (
        cache.self_attention_cache, cache.cross_attention_cache
    ))  # fmt: skip


__all__ = ["largest", "search", "take_over"]
