"""Token budgets, their determinism, and the collator."""

from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from modeling_vanilla.data.batching import PairCollator, TokenBatchSampler, TokenPairs
from modeling_vanilla.data.text_files import read_lines

MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"

lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200)


def random_lengths(count, seed=0):
    generator = np.random.default_rng(seed)
    source = generator.poisson(12, count) + 1
    return source, np.maximum(source + generator.integers(-4, 5, count), 1)


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(60, 500), st.integers(0, 3), st.integers(1, 6))
def test_every_pair_comes_once_and_no_batch_breaks_the_budget(pairs, max_tokens, epoch, multiple_of):
    source, target = map(np.array, zip(*pairs, strict=True))
    assume(len(pairs) >= multiple_of * len(TokenBatchSampler(source, target, max_tokens)))
    sampler = TokenBatchSampler(source, target, max_tokens, multiple_of=multiple_of)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(index for batch in batches for index in batch) == list(range(len(pairs)))
    assert all(len(batch) * max(source[batch].max(), target[batch].max()) <= max_tokens for batch in batches)
    assert len(batches) == len(sampler)
    assert len(batches) % multiple_of == 0


def test_padding_is_counted_as_it_is():
    source, target = random_lengths(500)
    sampler = TokenBatchSampler(source, target, 300)
    positions = sum(len(b) * (source[b].max() + target[b].max()) for b in sampler)
    assert sampler.padding == pytest.approx(1 - (source.sum() + target.sum()) / positions)


def test_same_seed_and_epoch_give_the_same_list():
    lists = [list(TokenBatchSampler(*random_lengths(500), 300, seed=3)) for _ in range(2)]
    assert lists[0] == lists[1]


@pytest.mark.parametrize("change", ["seed", "epoch"])
def test_another_seed_or_epoch_gives_another_list(change):
    first = TokenBatchSampler(*random_lengths(500), 300, seed=3)
    second = TokenBatchSampler(*random_lengths(500), 300, seed=4 if change == "seed" else 3)
    second.set_epoch(1 if change == "epoch" else 0)
    assert list(first) != list(second)
    assert {tuple(sorted(b)) for b in first} != {tuple(sorted(b)) for b in second}, "only the order changed"


def test_the_number_of_batches_is_the_same_in_every_epoch():
    sampler = TokenBatchSampler(*random_lengths(500), 300)
    counts = set()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        counts.add(len(list(sampler)))
    assert counts == {len(sampler)}


def test_without_shuffling_the_longest_come_first():
    source, target = random_lengths(200)
    batches = list(TokenBatchSampler(source, target, 300, shuffle=False))
    longest = [target[batch].max() for batch in batches]
    assert longest == sorted(longest, reverse=True)


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_the_list_as_accelerate_deals_it(processes):
    """Each process gets as many batches, none is cut, repeated or lost."""
    sampler = TokenBatchSampler(*random_lengths(501), 200, multiple_of=processes)
    shards = [list(BatchSamplerShard(sampler, processes, rank)) for rank in range(processes)]
    assert len({len(shard) for shard in shards}) == 1
    interleaved = [batch for row in zip(*shards, strict=True) for batch in row]
    assert interleaved == list(sampler)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ([5, 300], [5, 5], {}, r"pair 1 has 300 tokens.*max_tokens=100.*raise max_tokens"),
        ([], [], {}, "empty"),
        ([5, 5], [5], {}, "2 source lengths but 1"),
        ([5, 5], [5, 5], {"multiple_of": 3}, "2 pairs can't fill 3 batches"),
        ([60] * 6, [60] * 6, {"multiple_of": 4}, "6 pairs can't fill 8 batches"),
    ],
)
def test_what_cannot_be_batched_is_refused(source, target, options, message):
    with pytest.raises(ValueError, match=message):
        TokenBatchSampler(source, target, 100, **options)


def test_a_longer_pair_may_have_a_batch_of_its_own():
    """The others are made as without it."""
    lengths = np.array([7, 300, 5, 0, 6, 90, 4])
    alone = TokenBatchSampler(lengths, lengths, 14, shuffle=False, longer_alone=True)
    batches = [sorted(batch) for batch in alone]
    assert batches[:2] == [[1], [5]]  # the longest first
    others = np.array([7, 5, 0, 6, 4])
    without = [[int(lengths.tolist().index(n)) for n in others[batch]] for batch in TokenBatchSampler(
        others, others, 14, shuffle=False
    )]  # fmt: skip
    assert batches[2:] == [sorted(batch) for batch in without]


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs ../shared/data/multi30k")
def test_multi30k_has_at_most_six_percent_padding():
    """Lengths in words and a third of the letters, near what a vocabulary of 8,000 gives; 4,096 tokens a batch."""
    texts = [read_lines(MULTI30K / f"train.{lang}.gz", strict=True) for lang in ("en", "de")]
    sides = [np.array([len(line.split()) + len(line) // 12 + 1 for line in lines]) for lines in texts]
    assert TokenBatchSampler(*sides, 4096).padding <= 0.06


def test_collator_pads_on_the_right():
    pairs = TokenPairs(Dataset.from_dict({"input_ids": [[5, 6, 2], [7, 2]], "labels": [[8, 2], [9, 9, 9, 2]]}))
    batch = PairCollator(pad_token_id=0)(pairs.__getitems__([1, 0]))
    assert batch["input_ids"].tolist() == [[7, 2, 0], [5, 6, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[9, 9, 9, 2], [8, 2, -100, -100]]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_collator_reads_plain_examples_too():
    examples = [{"input_ids": [5, 2], "labels": [6, 7, 2]}, {"input_ids": [2], "labels": [2]}]
    batch = PairCollator(pad_token_id=0, pad_to_multiple_of=4)(examples)
    assert batch["input_ids"].tolist() == [[5, 2, 0, 0], [2, 0, 0, 0]]
    assert batch["labels"].tolist() == [[6, 7, 2, -100], [2, -100, -100, -100]]


def test_collator_reads_rows_out_of_a_selected_and_chunked_table():
    dataset = Dataset.from_dict(
        {"input_ids": [[i, 2] for i in range(50)], "labels": [[i] * (i % 5 + 1) for i in range(50)]}
    )
    pairs = TokenPairs(dataset.select([40, 3, 17, 29]))
    batch = PairCollator(pad_token_id=0)(pairs.__getitems__([2, 0]))
    assert batch["input_ids"].tolist() == [[17, 2], [40, 2]]
    assert batch["labels"].tolist() == [[17, 17, 17], [40, -100, -100]]


@pytest.mark.parametrize("with_columns", [True, False])
def test_lengths_come_from_columns_or_are_counted(with_columns):
    data = {"input_ids": [[5, 2], [2]], "labels": [[6, 7, 2], [2]]}
    if with_columns:
        data |= {"source_length": [2, 1], "target_length": [3, 1]}
    source, target = TokenPairs(Dataset.from_dict(data)).lengths()
    assert (source.tolist(), target.tolist()) == ([2, 1], [3, 1])


@pytest.mark.slow
def test_five_million_pairs_are_ready_in_five_seconds_and_half_a_gigabyte():
    import resource
    import time

    generator = np.random.default_rng(0)
    source = generator.poisson(25, 5_000_000).astype(np.int32) + 1
    target = np.maximum(source + generator.integers(-6, 7, len(source), dtype=np.int32), 1)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    next(iter(TokenBatchSampler(source, target, 4096)))
    assert time.monotonic() - start < 5
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 500
