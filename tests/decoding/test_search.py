"""`search` beside the library's own beam search and a greedy loop."""

import pytest
import torch

from modeling_vanilla.decoding.search import largest, search


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
    expected = model.generate(**batch, **settings, output_scores=True)
    found = model.generate(**batch, **settings, custom_generate=search)
    assert_same(model, found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_is_greedy_search(lively, seed):
    model = lively(seed)
    batch = sources(model)
    expected = model.generate(**batch, max_length=20)
    found = model.generate(**batch, max_length=20, custom_generate=search).sequences
    assert torch.equal(found, expected)


def test_processors_see_the_tokens_so_far(lively):
    model = lively(1)
    batch = sources(model)
    settings = {"num_beams": 4, "max_length": 24, "no_repeat_ngram_size": 1}
    expected = model.generate(**batch, **settings)
    assert_same(model, model.generate(**batch, **settings, custom_generate=search).sequences, expected)


def test_a_prompt_is_kept(lively):
    model = lively(2)
    batch = sources(model, 3)
    prompt = torch.tensor([[1, 7, 9]] * 3)
    settings = {"num_beams": 3, "max_length": 15, "decoder_input_ids": prompt}
    found = model.generate(**batch, **settings, custom_generate=search).sequences
    assert_same(model, found, model.generate(**batch, **settings))
    assert torch.equal(found[:, :3], prompt)


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
