"""`search`, by itself and behind `generate()`, beside the library's own beam search and greedy loop."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin
from transformers.generation import BaseStreamer

from modeling_vanilla.decoding.search import largest, search

LIBRARY = {1: GenerationMixin._sample, 3: GenerationMixin._beam_search, 4: GenerationMixin._beam_search}


def assert_same(model, found: torch.Tensor, expected: torch.Tensor) -> None:
    """The library pads beam search's results with the end token where the padding token is 0."""
    config = model.generation_config
    ended = (expected == config.eos_token_id).cumsum(1) - (expected == config.eos_token_id).long()
    assert torch.equal(found, expected.masked_fill(ended > 0, config.pad_token_id))


SETTINGS = [{}, {"early_stopping": True}, {"early_stopping": "never"}, {"length_penalty": 0.0}, {"length_penalty": 2.0}]


def sources(model, count: int = 7) -> dict[str, torch.Tensor]:
    lengths = torch.randint(1, 9, (count,))
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return {"input_ids": torch.randint(3, model.config.vocab_size, mask.shape) * mask, "attention_mask": mask}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_equals_the_librarys_beam_search(lively, seed, settings):
    model = lively(seed)
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_length": 20, "return_dict_in_generate": True} | settings
    batch = sources(model)
    expected = model.generate(**batch, **settings, custom_generate=LIBRARY[3], output_scores=True)
    found = model.generate(**batch, **settings, custom_generate=search)
    assert_same(model, found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_is_greedy_search(lively, seed):
    model = lively(seed)
    batch = sources(model)
    expected = model.generate(**batch, max_length=20, custom_generate=LIBRARY[1])
    found = model.generate(**batch, max_length=20, custom_generate=search).sequences
    assert torch.equal(found, expected)
    assert torch.equal(model.generate(**batch, max_length=20), expected)


PROCESSED = [
    {"no_repeat_ngram_size": 1}, {"repetition_penalty": 3.0}, {"bad_words_ids": [[5], [6, 7]]},
    {"min_length": 9, "forced_eos_token_id": 2}, {"suppress_tokens": [4, 8], "encoder_repetition_penalty": 0.5},
]  # fmt: skip


# Those that count on the row that a sentence stands in: nothing may leave the batch.
BY_ROW = [
    {"prefix_allowed_tokens_fn": lambda b, tokens: [10 + b] if len(tokens) < 2 + 2 * b else [2]},
    {"encoder_repetition_penalty": 1.5},
    {"encoder_no_repeat_ngram_size": 1},
]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("settings", [*PROCESSED, *BY_ROW], ids=lambda settings: next(iter(settings)))
def test_processors_see_the_tokens_so_far(lively, settings, num_beams):
    """Greedy search hands them logits, whose sign a repetition penalty minds, and beam search log-probabilities."""
    model = lively(1)
    batch = sources(model)
    settings = {"num_beams": num_beams, "max_length": 24} | settings
    expected = model.generate(**batch, **settings, custom_generate=LIBRARY[num_beams])
    assert_same(model, model.generate(**batch, **settings), expected)


@pytest.mark.parametrize("settings", [{"sequence_bias": {(5,): 6.0}}, {"repetition_penalty": 3.0}, {"min_length": 9}])
def test_greedy_scores_are_log_probabilities_whatever_processors_make_of_logits(lively, settings):
    model = lively(1)
    batch = sources(model)
    settings = {"length_penalty": 0.0, "max_length": 12, "return_dict_in_generate": True, **settings}
    found = model.generate(**batch, **settings, custom_generate=search)
    ids = found.sequences
    log_probs = model(**batch, decoder_input_ids=ids[:, :-1]).logits.log_softmax(-1)
    each = log_probs.gather(2, ids[:, 1:, None])[..., 0].masked_fill(ids[:, 1:] == model.config.pad_token_id, 0)
    torch.testing.assert_close(found.sequences_scores, each.sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_room_for_tokens_grows(lively, monkeypatch, num_beams):
    model = lively(1)
    batch = sources(model)
    settings = {"num_beams": num_beams, "max_length": 24, "repetition_penalty": 3.0}
    expected = model.generate(**batch, **settings)
    assert expected.shape[1] > 10
    monkeypatch.setattr("modeling_vanilla.decoding.search.ROOM", 2)
    assert torch.equal(model.generate(**batch, **settings), expected)


def test_a_prompt_is_kept(lively):
    model = lively(2)
    batch = sources(model, 3)
    prompt = torch.tensor([[1, 7, 9]] * 3)
    settings = {"num_beams": 3, "max_length": 15, "decoder_input_ids": prompt}
    found = model.generate(**batch, **settings, custom_generate=search).sequences
    assert_same(model, found, model.generate(**batch, **settings, custom_generate=LIBRARY[3]))
    assert torch.equal(found[:, :3], prompt)


class Silent(BaseStreamer):
    def put(self, value: torch.Tensor) -> None:
        """A streamer that shows nothing."""

    def end(self) -> None:
        """Nor at the end."""


def hooked(model) -> dict:
    model.register_forward_hook(lambda *_: None)
    return {}


def with_its_own_forward(model) -> dict:
    model.forward = model.forward
    return {}


LEFT_TO_THE_LIBRARY = {
    "a hook": hooked,
    "another forward": with_its_own_forward,
    "sampling": lambda _: {"do_sample": True, "top_k": 1},
    "an output with more": lambda _: {"return_dict_in_generate": True, "output_attentions": True},
    "a static cache": lambda _: {"cache_implementation": "static"},
    "no cache": lambda _: {"use_cache": False},
    "a cache given": lambda _: {"cache": EncoderDecoderCache(DynamicCache(), DynamicCache())},
    "a decoder mask": lambda _: {
        "decoder_input_ids": torch.ones(7, 1).long(),
        "decoder_attention_mask": torch.ones(7, 1),
    },
    "a streamer": lambda _: {"streamer": Silent()},
}


@pytest.mark.parametrize("prepare", LEFT_TO_THE_LIBRARY.values(), ids=LEFT_TO_THE_LIBRARY)
def test_what_search_does_not_do_is_the_librarys(lively, monkeypatch, prepare):
    model = lively(4)
    count = 1 if prepare is LEFT_TO_THE_LIBRARY["a streamer"] else 7
    batch = sources(model, count)
    expected = model.generate(**batch, max_length=20)
    monkeypatch.setattr("modeling_vanilla.decoding.search.search", None)
    with pytest.raises(TypeError):
        model.generate(**batch, max_length=20)
    found = model.generate(**batch, max_length=20, **prepare(model))
    assert torch.equal(found if isinstance(found, torch.Tensor) else found.sequences, expected)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_no_sentence_grows_past_its_own_limit(lively, num_beams):
    model = lively(3, eos_token_id=2)
    batch = sources(model, 4)
    model.lm_head.bias.data[2] = -30  # never ends by itself
    limits = torch.tensor([1, 4, 2, 6])
    settings = {"num_beams": num_beams, "max_length": 30}
    found = model.generate(**batch, **settings, custom_generate=search, limits=limits).sequences
    ends = (found[:, 1:] == 2).int().argmax(1) + 1
    assert torch.equal(ends, limits)


@pytest.mark.parametrize(("V", "count"), [(64, 3), (640, 5), (1000, 8), (1001, 4), (7, 9), (4096, 1)])
def test_largest_equals_topk(V, count):
    x = torch.randn(5, V)
    expected = x.topk(min(count, V))
    values, index = largest(x, count)
    assert torch.equal(values, expected.values)
    assert torch.equal(index, expected.indices)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_pad_end_and_start_may_be_one_token(lively, num_beams):
    model = lively(2, pad_token_id=0, eos_token_id=0, decoder_start_token_id=0)
    model.lm_head.bias.data[0] = 30  # ends at once
    batch = sources(model, 3)
    expected = model.generate(**batch, num_beams=num_beams, max_length=9, custom_generate=LIBRARY[num_beams])
    assert torch.equal(model.generate(**batch, num_beams=num_beams, max_length=9), expected)


def test_the_papers_length_penalty_is_not_left_out_silently(lively, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("modeling_vanilla.decoding.search.logger.warning_once", said.append)
    model = lively(2)
    model.generation_config.length_penalty_type = "paper"
    model.generate(**sources(model, 2), num_beams=3, max_length=9, return_dict_in_generate=True)
    assert ["length_penalty_type='paper' is unknown to the library" in text for text in said] == [True]
