"""
Greedy and beam search from which finished sentences depart, for `generate(custom_generate=search)`.

Shapes: `B` sentences still searched, `K` beams, `C` candidates a sentence, `V` vocabulary, `L` tokens.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    generation,
)
from transformers.generation import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.utils import logging

from modeling_vanilla.decoding.cache import RoomyLayer
from modeling_vanilla.decoding.constraints import NEVER, Constraints
from modeling_vanilla.decoding.lengths import length_divisor
from modeling_vanilla.decoding.packing import packed

logger = logging.get_logger(__name__)

# Processors and criteria that don't mind in which row of the batch a sentence stands.
OF_ANY_ROW = (
    *(generation.MinLengthLogitsProcessor, generation.MinNewTokensLengthLogitsProcessor),
    *(generation.NoRepeatNGramLogitsProcessor, generation.RepetitionPenaltyLogitsProcessor),
    *(generation.NoBadWordsLogitsProcessor, generation.SequenceBiasLogitsProcessor),
    *(generation.SuppressTokensLogitsProcessor, generation.SuppressTokensAtBeginLogitsProcessor),
    *(generation.ForcedBOSTokenLogitsProcessor, generation.ForcedEOSTokenLogitsProcessor),
    *(generation.InfNanRemoveLogitsProcessor, generation.ExponentialDecayLengthPenalty),
    *(generation.LogitNormalization, generation.MaxTimeCriteria, generation.StopStringCriteria),
)
ROOM = 128  # tokens
SEARCH_NEEDS = {"encoder_outputs", "attention_mask", "cache", "use_cache"}  # of what generate() hands on


class Member:
    """
    A model that scores the next token.

    Args:
        source, mask: what its encoder gave, `(B, S, D)`, and which of it are tokens, `(B, S)`.
        cache: a new one.
    """

    def __init__(self, model: PreTrainedModel, source: torch.Tensor, mask: torch.Tensor | None, cache: Any = None):
        self.decoder, self.head, self.source, self.mask = model.get_decoder(), model.lm_head, source, mask
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if cache is None else cache
        self.cache.self_attention_cache.layers = [RoomyLayer() for _ in self.decoder.layers]

    def __call__(self, new_ids: torch.Tensor) -> torch.Tensor:
        """Logits `(B * K, V)` in float32 of what follows the tokens so far and `new_ids` `(B * K, T)`."""
        states = self.decoder(
            new_ids,
            encoder_hidden_states=self.source,
            encoder_attention_mask=self.mask,
            cache=self.cache,
            use_cache=True,
        )
        return self.head(states.last_hidden_state[:, -1]).float()

    def keep(self, sentences: torch.Tensor) -> None:
        """Goes on with these sentences alone."""
        self.source = self.source[sentences]
        self.mask = None if self.mask is None else self.mask[sentences]
        self.cache.cross_attention_cache.reorder_cache(sentences)

    def reorder(self, rows: torch.Tensor) -> None:
        """Goes on from these rows of the last step."""
        self.cache.self_attention_cache.reorder_cache(rows)


def search(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    limits: torch.Tensor | None = None,
    ensemble: Sequence[Member] = (),
    prefixes: torch.Tensor | None = None,
    constraints: Constraints | None = None,
    **model_kwargs: Any,
) -> GenerateBeamEncoderDecoderOutput:
    """
    The library's beam search, sentence by sentence the same: `early_stopping`, `length_penalty`, processors and
    criteria mean what they mean there. With one beam it is greedy search. A sentence leaves the batch when nothing can
    improve its result, so that the last ones don't hold up all, unless a processor or criterion may count on its row.
    What the library doesn't have: the paper's length penalty (`generation_config.length_penalty_type="paper"`), and the
    arguments here.

    Args:
        limits: `(B)`, the most new tokens of each sentence, the last of which is its end.
        ensemble: other models; the mean of all models' probabilities is what is searched by.
        prefixes: `(B, P)`, what each translation begins with, filled with -100.
        constraints: what each translation must contain.
        others: what `generate()` hands to a decoding function.

    Returns:
        `sequences`, the prompts included, padded with the padding token, and `sequences_scores`:
        `num_return_sequences` of each sentence, best first.
    """
    config, K, start, device = generation_config, generation_config.num_beams, input_ids.shape[1], input_ids.device
    alpha, early, max_length = config.length_penalty, config.early_stopping, config.max_length
    alpha = 1.0 if alpha is None else alpha
    kind = getattr(config, "length_penalty_type", "power")
    ends, B = config._eos_token_tensor, len(input_ids) // K
    C = 1 if K == 1 else K * max(2, 1 + (0 if ends is None else len(ends)))  # enough to go on if K of them end
    criteria = StoppingCriteriaList(
        one for one in stopping_criteria if not isinstance(one, EosTokenCriteria | MaxLengthCriteria)
    )
    may_leave = all(type(one) in OF_ANY_ROW for one in (*logits_processor, *criteria))
    first_limit = max_length if limits is None else int(limits.min())
    limits = torch.full((B,), max_length - start, device=device) if limits is None else limits.to(device)

    source, mask = model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask")
    members = [Member(model, source, mask, model_kwargs["cache"]), *ensemble]
    fill = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    width = min(max_length, start + ROOM)  # of all that holds tokens; it grows
    tokens = input_ids.new_full((B, K, width), fill)  # of running beams
    tokens[:, :, :start] = input_ids.view(B, K, start)
    scores = torch.zeros(B, K, device=device)
    scores[:, 1:] = NEVER  # at first all beams are one
    ended, ended_scores = tokens, torch.full((B, K), NEVER, device=device)  # the best that have ended, (B, K, L)
    ended_lengths = torch.zeros_like(ended_scores, dtype=torch.long)
    results, result_scores, result_lengths = tokens.clone(), ended_scores.clone(), ended_lengths.clone()
    done = torch.zeros(B, dtype=torch.bool, device=device)  # those in the batch that have their results
    sentences = torch.arange(B, device=device)  # those still searched
    new_ids = input_ids
    for length in range(start, max_length):
        if length == width:
            width = min(max_length, 2 * width)
            tokens, ended, results = (
                nn.functional.pad(x, (0, width - length), value=fill) for x in (tokens, ended, results)
            )
        step = length - start  # new tokens before this one
        logits, normaliser = members[0](new_ids), None  # (B * K, V)
        is_forced = prefixes is not None and step < prefixes.shape[1]
        if len(members) > 1:
            logits = mean_of_probabilities([logits, *(member(new_ids) for member in members[1:])])
        elif is_forced or constraints is not None or (logits_processor and K > 1):  # as the library has it with beams
            logits = logits.log_softmax(-1)
        elif K > 1 or config.return_dict_in_generate:  # else nobody asks for scores
            normaliser = logits.logsumexp(-1, keepdim=True)
        plain = logits
        if logits_processor:
            kept = is_forced or normaliser is not None
            logits = logits_processor(tokens[:, :, :length].flatten(0, 1), logits.clone() if kept else logits)
        if prefixes is not None and is_forced:  # whatever a processor thinks of it
            logits = follow(prefixes[sentences, step], plain, logits)
        values, ids = largest(logits, C)
        if normaliser is not None:  # what a processor makes of a logit is no log-probability
            values = plain.gather(1, ids) - normaliser
        values, ids = values.view(B, K, -1) + scores[:, :, None], ids.view(B, K, -1)  # (B, K, C)
        over = torch.zeros(B, dtype=torch.bool, device=device)
        if step + 1 >= first_limit and ends is not None:
            over = step + 1 >= limits
            values[over], ids[over] = -torch.inf, ends[0]
            values[over, :, 0] = scores[over]
        values, chosen = values.flatten(1).topk(C)  # (B, C)
        beams, ids = chosen // ids.shape[2], ids.flatten(1).gather(1, chosen)
        if constraints is not None:
            is_last = length + 1 >= max_length
            constraints.choose(sentences, logits.view(B, K, -1), scores, values, beams, ids, over, is_last)
        candidates = tokens.gather(1, beams[:, :, None].expand(-1, -1, width))  # (B, C, L)
        candidates[:, :, length] = ids

        stops = torch.full_like(ids, length + 1 >= max_length, dtype=torch.bool)
        if ends is not None:
            stops |= (ids[:, :, None] == ends).any(-1)
        if criteria:
            stops |= criteria(candidates[:, :, : length + 1].flatten(0, 1), None).view(B, C)
        # Of those that end, the first K may be results; of those that don't, the best K go on.
        new_scores = values / length_divisor(step + 1, alpha, kind)
        new_scores = new_scores.masked_fill(~stops | (values <= NEVER / 2), NEVER)[:, :K]
        ended_scores, order = torch.cat((ended_scores, new_scores), 1).topk(K)
        ended_lengths = torch.cat((ended_lengths, torch.full_like(ended_lengths, length + 1)), 1).gather(1, order)
        ended = torch.cat((ended, candidates[:, :K]), 1).gather(1, order[:, :, None].expand(-1, -1, width))
        scores, order = values.masked_fill(stops, NEVER).topk(K)
        tokens = candidates.gather(1, order[:, :, None].expand(-1, -1, width))
        rows = beams.gather(1, order) + K * torch.arange(B, device=device)[:, None]  # (B, K)
        if constraints is not None:
            constraints.go_on(sentences, order)

        has_all = (ended_scores > NEVER / 2).all(1)
        lengths = limits if early == "never" and alpha > 0 else step + 1
        reachable = scores[:, 0] / length_divisor(lengths, alpha, kind)
        leaves = stops.all(1) | (has_all & (reachable <= ended_scores[:, -1]))
        if early is True or K == 1:
            leaves |= has_all
        leaves &= ~done
        if leaves.any():
            gone = sentences[leaves]
            results[gone], result_scores[gone], result_lengths[gone] = (
                x[leaves] for x in (ended, ended_scores, ended_lengths)
            )
            done |= leaves
            if done.all():
                break
        if may_leave and leaves.any():
            stays = (~done).nonzero()[:, 0]
            B, sentences, limits = len(stays), sentences[stays], limits[stays]
            tokens, scores, rows, done = (x[stays] for x in (tokens, scores, rows, done))
            ended, ended_scores, ended_lengths = (x[stays] for x in (ended, ended_scores, ended_lengths))
            for member in members:
                member.keep(stays)
        if K > 1 or (may_leave and leaves.any()):
            for member in members:
                member.reorder(rows.flatten())
        new_ids = tokens[:, :, length].reshape(-1, 1)

    count = config.num_return_sequences
    longest = max(int(result_lengths[:, :count].max()), start + 1)
    return GenerateBeamEncoderDecoderOutput(
        sequences=results[:, :count, :longest].flatten(0, 1), sequences_scores=result_scores[:, :count].flatten()
    )


def mean_of_probabilities(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """The logarithm of the mean of several models' probabilities, `(N, V)` each."""
    return torch.stack([one.log_softmax(-1) for one in logits]).logsumexp(0) - math.log(len(logits))


def follow(forced: torch.Tensor, log_probs: torch.Tensor, else_: torch.Tensor) -> torch.Tensor:
    """
    Log-probabilities `(B * K, V)`, of which only that of its sentence's token in `forced` `(B)` is left; those of
    `else_` where there is none.
    """
    forced = forced.repeat_interleave(len(log_probs) // len(forced))[:, None]  # (B * K, 1)
    others = torch.arange(log_probs.shape[1], device=forced.device) != forced
    return torch.where(forced >= 0, log_probs.masked_fill(others, -torch.inf), else_)


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
        if decode.__name__ == "_beam_search" and getattr(generation_config, "length_penalty_type", None) == "paper":
            logger.warning_once("length_penalty_type='paper' is unknown to the library, which this search is left to")
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


__all__ = ["Member", "largest", "search", "take_over"]
