"""BPE-dropout beside the tokenizer, and beside the exact probabilities of its paper's algorithm 1."""

import pickle
from collections import Counter
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from modeling_vanilla.data import train_tokenizer, train_word_tokenizer
from modeling_vanilla.data.batching import PairCollator, TokenBatchSampler, TokenPairs
from modeling_vanilla.data.bpe_dropout import VARIANTS, BPEDropout

TEXTS = ["the banana and the bandana", "a canal, a banal plan: 1234 !!", "Äpfel und Bananen im Kanal"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocab_size=320)


def rows_of(tokenizer, texts):
    return [np.asarray(ids, dtype=np.int32) for ids in tokenizer(texts).input_ids]


def cut_all(dropout, rows, seed=0):
    draw = np.random.default_rng(seed)
    return [dropout(row, draw) for row in rows]


UGLY = ["", " ", "  two  spaces ", "日本の 猫", "a\u200db", "</s> <0x41>", "tab\there", "e\u0301", "x" * 300]


def test_without_dropout_nothing_changes(tokenizer):
    rows = rows_of(tokenizer, TEXTS + UGLY)
    cut = cut_all(BPEDropout(tokenizer, 0.0), rows)
    assert [row.tolist() for row in cut] == [row.tolist() for row in rows]
    assert all(row.dtype == np.int32 for row in cut)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.99])
def test_the_text_stays_the_same(tokenizer, p):
    rows = rows_of(tokenizer, TEXTS + UGLY)
    cut = cut_all(BPEDropout(tokenizer, p), rows)
    assert tokenizer.batch_decode(cut) == tokenizer.batch_decode(rows)
    assert any(len(new) > len(old) for new, old in zip(cut, rows, strict=True))


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_cuts_have_the_algorithms_probabilities(tokenizer, p):
    dropout = BPEDropout(tokenizer, p)

    @lru_cache(None)
    def outcomes(parts: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        """By enumeration: the best candidate wins unless it was left out, and so on; none: the end."""
        ranks = [dropout.ranks.get(pair) for pair in pairwise(parts)]
        result: Counter = Counter()
        left = 1.0
        for _, i in sorted((rank, i) for i, rank in enumerate(ranks) if rank is not None):
            for end, chance in outcomes((*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :])).items():
                result[end] += left * (1 - p) * chance
            left *= p
        result[parts] += left
        return result

    word, draws = " banana", 20_000
    found = Counter(dropout._cut_word(word, variant) for variant in range(draws))
    expected = Counter()
    for parts, chance in outcomes(tuple(word)).items():
        expected[tuple(tokenizer.convert_tokens_to_ids(list(parts)))] += chance
    assert sum(expected.values()) == pytest.approx(1)
    for ids, chance in expected.items():
        assert found[ids] / draws == pytest.approx(chance, abs=5 * (chance * (1 - chance) / draws) ** 0.5 + 1e-3)
    assert found.keys() <= expected.keys()


def test_a_seed_says_it_all(tokenizer):
    rows = rows_of(tokenizer, TEXTS)

    def cut(seed: int, draw: int) -> list[list[int]]:
        return [row.tolist() for row in cut_all(BPEDropout(tokenizer, 0.3, seed), rows, draw)]

    assert cut(1, 1) == cut(1, 1)
    assert cut(1, 1) != cut(2, 1)
    assert cut(1, 1) != cut(1, 2)


def test_a_word_has_at_most_so_many_cuts(tokenizer):
    (row,) = rows_of(tokenizer, [" ".join(["bandana"] * 2000)])
    dropout = BPEDropout(tokenizer, 0.5)
    dropout(row, np.random.default_rng(0))
    assert dropout._cut.cache_info().currsize <= 2 * (VARIANTS + 1)  # the first word has no second space before it


def loaded(tokenizer, epoch: int, **settings) -> list[list[list[int]]]:
    """The labels of an epoch's batches, as a loader with workers gives them."""
    ids = tokenizer(TEXTS * 4).input_ids
    pairs = Dataset.from_dict({"input_ids": ids, "labels": ids})
    dataset = TokenPairs(pairs, BPEDropout(tokenizer, 0.3, 3))
    sampler = TokenBatchSampler(*dataset.lengths(), 100, seed=3, redraw=dataset.lengths)
    sampler.set_epoch(epoch)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=PairCollator(0), **settings)
    return [batch["labels"].tolist() for batch in loader]


def test_epochs_differ_and_workers_do_not(tokenizer):
    first = loaded(tokenizer, 0)
    assert first == loaded(tokenizer, 0)
    assert first == loaded(tokenizer, 0, num_workers=2)
    assert sorted(map(str, first)) != sorted(map(str, loaded(tokenizer, 1)))


@pytest.mark.parametrize("multiple_of", [1, 4])
def test_every_epochs_batches_keep_to_the_budget_and_are_as_many(tokenizer, multiple_of):
    ids = tokenizer(TEXTS * 60).input_ids
    pairs = Dataset.from_dict({"input_ids": ids, "labels": ids[1:] + ids[:1]})
    dataset = TokenPairs(pairs, BPEDropout(tokenizer, 0.3, 3))
    sampler = TokenBatchSampler(*dataset.lengths(), 400, seed=3, multiple_of=multiple_of, redraw=dataset.lengths)
    numbers, seen = set(), []
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        numbers |= {len(batches), len(sampler)}
        assert sorted(index for batch in batches for index in batch) == list(range(len(ids)))
        real = held = 0
        for batch in batches:
            tensors = PairCollator(0)(dataset.__getitems__(batch))
            assert max(tensors["input_ids"].numel(), tensors["labels"].numel()) <= 400
            real += int(tensors["attention_mask"].sum() + (tensors["labels"] != -100).sum())
            held += tensors["input_ids"].numel() + tensors["labels"].numel()
        assert sampler.padding == pytest.approx(1 - real / held)
        seen.append(real)
    assert len(numbers) == 1
    assert numbers.pop() % multiple_of == 0
    assert len(set(seen)) == 3


def test_lengths_are_drawn_once_an_epoch():
    drawn, lengths = [], np.array([10, 20, 30])
    sampler = TokenBatchSampler(lengths, lengths, 40, redraw=lambda epoch: drawn.append(epoch) or (lengths, lengths))
    for epoch in (0, 0, 1, 1, 0):
        sampler.set_epoch(epoch)
        list(sampler)
    assert drawn == [1, 0]  # those of epoch 0 were given


def test_a_small_data_set_that_needs_more_batches_than_before_gets_a_wider_budget():
    lengths = {0: np.array([10, 10, 10, 10]), 1: np.array([30, 30, 30, 10])}
    sampler = TokenBatchSampler(lengths[0], lengths[0], 40, redraw=lambda epoch: (lengths[epoch],) * 2)
    assert len(list(sampler)) == len(sampler) == 2
    sampler.set_epoch(1)
    assert sorted(map(len, sampler)) == [2, 2]
    assert len(sampler) == 2


def test_the_sides_are_cut_apart(tokenizer):
    ids = tokenizer(TEXTS).input_ids
    pairs = TokenPairs(Dataset.from_dict({"input_ids": ids, "labels": ids}), BPEDropout(tokenizer, 0.5))
    batch = pairs.__getitems__(list(range(len(ids))))
    assert any(pair["input_ids"].tolist() != pair["labels"].tolist() for pair in batch)


def test_a_text_that_grows_too_long_stays_as_it_was(tokenizer):
    ids = tokenizer(TEXTS).input_ids
    longest = max(map(len, ids))
    pairs = TokenPairs(Dataset.from_dict({"input_ids": ids, "labels": ids}), BPEDropout(tokenizer, 0.9), longest)
    batch = pairs.__getitems__(list(range(len(ids))))
    assert max(len(pair["labels"]) for pair in batch) <= longest
    assert longest in [len(pair["labels"]) for pair in batch]  # the longest stayed, for it can only have grown


def test_an_unknown_token_keeps_its_text_whole():
    backend = Tokenizer(models.BPE(vocab={"<unk>": 0, "a": 1, "b": 2, "ab": 3}, merges=[("a", "b")], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    rows = rows_of(tokenizer, ["abab", "abz"])
    cut = cut_all(BPEDropout(tokenizer, 0.9, seed=1), rows)
    assert cut[1].tolist() == rows[1].tolist()
    assert len(cut[0]) > len(rows[0])


def test_other_tokenizers_are_refused():
    with pytest.raises(ValueError, match="needs a BPE tokenizer"):
        BPEDropout(train_word_tokenizer(TEXTS, 30), 0.1)
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[], end_of_word_suffix="</w>"))
    with pytest.raises(ValueError, match="end_of_word_suffix"):
        BPEDropout(PreTrainedTokenizerFast(tokenizer_object=backend), 0.1)
    with pytest.raises(ValueError, match=r"bpe_dropout=1\.5"):
        BPEDropout(train_tokenizer(TEXTS, vocab_size=320), 1.5)


def test_it_can_be_sent_to_a_worker(tokenizer):
    rows = rows_of(tokenizer, TEXTS)
    dropout = BPEDropout(tokenizer, 0.4, seed=7)
    copy = pickle.loads(pickle.dumps(dropout))
    expected, found = (cut_all(one, rows) for one in (dropout, copy))
    assert [row.tolist() for row in found] == [row.tolist() for row in expected]
