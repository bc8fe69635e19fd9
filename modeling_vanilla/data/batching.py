"""Batches as token budgets, from length buckets, and the collator that fills them.

Notation: a batch of n pairs holds n · (longest source) source positions and n · (longest target) target positions,
padding included; both stay within the budget.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from modeling_vanilla.data.bpe_dropout import BPEDropout

CUT_AT_ONCE = 4096  # pairs
SPARE = 0.01  # of the batches: by so many more than those of epoch 0 may lengths that change make
Lengths = tuple[np.ndarray, np.ndarray]  # source and target tokens of every pair


class Batch(list[int]):
    """The indices of a batch's pairs, and the epoch that they are drawn in, which a worker has no other way to know."""

    def __init__(self, indices: list[int] = (), epoch: int = 0):  # type: ignore[assignment]
        super().__init__(indices)
        self.epoch = epoch


class TokenBatchSampler(Sampler[list[int]]):
    """
    Batches of pairs of similar lengths, at most `max_tokens` padded positions on either side.

    Which lengths meet in a batch is fixed; which pairs of that length, and the order of the batches, are drawn anew
    from (seed, epoch). So `len()` is the same in every epoch, the list is the same on every process, and an epoch can
    be taken up in its middle by skipping batches. Lengths that change with the epoch (`redraw`) are laid out anew, in
    as many batches: by halving some or, should a small data set need more than before, in a budget that gives. It deals
    in whole batches for all processes: `accelerate` hands each process its share. There is no `batch_size` attribute,
    because accelerate would cut the batches to it.

    Args:
        source_lengths, target_lengths: tokens of each pair, `(number of pairs)` each.
        max_tokens: the budget, in padded positions a side.
        seed: of the order.
        shuffle: False keeps the order of lengths, the longest first (for evaluation: running out of memory shows at
            once).
        longer_alone: a pair that doesn't fit into the budget makes a batch of its own, in the place of an error.
        multiple_of: the number of batches is made a multiple of this (processes × accumulation steps) by halving the
            batches with the most pairs, so that no pair is dropped or repeated.
        redraw: gives the lengths in an epoch; those above are then the lengths in epoch 0.

    Raises:
        ValueError: for a pair that doesn't fit into the budget alone, an empty data set, or fewer pairs than batches
            would be needed for `multiple_of`.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        longer_alone: bool = False,
        multiple_of: int = 1,
        redraw: Callable[[int], Lengths] | None = None,
    ):
        source, target = (np.asarray(lengths, dtype=np.int32) for lengths in (source_lengths, target_lengths))
        if len(source) != len(target):
            raise ValueError(f"{len(source)} source lengths but {len(target)} target lengths: there must be as many")
        if len(source) == 0:
            raise ValueError("no pairs to make batches of: the data set is empty")
        longest = np.maximum(source, target)
        if longest.max() > max_tokens and not longer_alone:
            raise ValueError(
                f"pair {longest.argmax()} has {longest.max()} tokens on one side, but a batch holds max_tokens="
                f"{max_tokens}: raise max_tokens, or lower max_length so that such pairs are dropped"
            )
        self.max_tokens, self.seed, self.shuffle, self.redraw, self.epoch = max_tokens, seed, shuffle, redraw, 0
        self._lay_out(source, target, 0)  # as many batches as it takes
        fewest, most = (int(-(-len(self) * times // multiple_of) * multiple_of) for times in (1, 1 + SPARE))
        if fewest > len(source):
            raise ValueError(
                f"{len(source)} pairs can't fill {fewest} batches, a multiple of {multiple_of} for the processes and "
                "accumulation steps: use fewer of them, or more data"
            )
        number = most if redraw and most <= len(source) else fewest
        if number != len(self):
            self._lay_out(source, target, number)
        self._laid_out = 0  # the epoch whose lengths those are

    def _lay_out(self, source: np.ndarray, target: np.ndarray, number: int) -> None:
        """Decides which lengths meet in a batch, and measures the padding."""
        # By target length; within one, by source length, up and down in turn, so that neighbours differ by little.
        snake = np.where(target % 2, source, np.int64(2**31 - 1) - source)
        self._key = target.astype(np.int64) << 32 | snake
        order = np.argsort(self._key, kind="stable")
        source, target, budget = source[order], target[order], self.max_tokens
        bounds = _cut(source, target, budget)
        while 0 < number < len(bounds) - 1:
            budget += -(-budget // 100)
            bounds = _cut(source, target, budget)
        self._bounds = _split(bounds, number)
        sizes, starts = np.diff(self._bounds), self._bounds[:-1]
        positions = sum(int((sizes * np.maximum.reduceat(side, starts)).sum()) for side in (source, target))
        tokens = sum(int(side.sum(dtype=np.int64)) for side in (source, target))
        self.padding = 1 - tokens / positions  # the share of all source and target positions, from 0 to 1

    def set_epoch(self, epoch: int) -> None:
        """Selects the order that the next iteration yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[list[int]]:
        if self.redraw is not None and self.epoch != self._laid_out:
            self._lay_out(*self.redraw(self.epoch), len(self))
            self._laid_out = self.epoch
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.epoch))
            order = generator.permutation(len(self._key)).astype(np.int32)
            order = order[np.argsort(self._key[order], kind="stable")]  # equal lengths now lie in drawn order
            batches = generator.permutation(len(self))
        else:
            order = np.argsort(self._key, kind="stable").astype(np.int32)
            batches = np.arange(len(self))[::-1]
        for batch in batches:
            yield Batch(order[self._bounds[batch] : self._bounds[batch + 1]].tolist(), self.epoch)


def _cut(source: np.ndarray, target: np.ndarray, max_tokens: int) -> np.ndarray:
    """Where batches begin when pairs are taken in order until the next would break the budget; and the end."""
    bounds, start, total = [0], 0, len(source)
    while start < total:
        window = slice(start, start + max(1, max_tokens // max(1, source[start], target[start])))
        width = np.maximum(np.maximum.accumulate(source[window]), np.maximum.accumulate(target[window]))
        fits = width * np.arange(1, len(width) + 1) <= max_tokens  # true, then false for good
        fits[0] = True  # whatever its length
        start += len(width) if fits[-1] else int(fits.argmin())
        bounds.append(start)
    return np.asarray(bounds)


def _split(bounds: np.ndarray, wanted: int) -> np.ndarray:
    """Halves the batches with the most pairs until there are so many."""
    while (missing := wanted - (len(bounds) - 1)) > 0:
        sizes = np.diff(bounds)
        largest = np.argsort(-sizes, kind="stable")[:missing]
        largest = largest[sizes[largest] > 1]
        bounds = np.sort(np.concatenate((bounds, bounds[largest] + sizes[largest] // 2)))
    return bounds


class TokenPairs(TorchDataset):
    """
    A tokenised `datasets.Dataset` (columns `input_ids` and `labels`) as a `DataLoader` reads it: a whole batch at a
    time, straight out of the memory-mapped Arrow table.

    Args:
        dropout: cuts the texts anew in each epoch, by (its seed, the epoch, the pair); a text that then has more than
            `max_length` tokens stays as it was.
    """

    def __init__(self, dataset: Any, dropout: BPEDropout | None = None, max_length: int | None = None):
        if not isinstance(dataset, Dataset):
            raise ValueError(f"a {type(dataset).__name__} has no lengths to make batches of: give a datasets.Dataset")
        self.dataset, self.dropout, self.max_length = dataset, dropout, max_length
        self._arrow = dataset.with_format("arrow", columns=["input_ids", "labels"])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self._arrow[index].to_pylist()[0]

    def __getitems__(self, indices: list[int]) -> pa.Table | list[dict[str, Any]]:
        table = self._arrow[indices]
        if self.dropout is None:
            return table
        source, target = self._cut(self.dropout, table, indices, getattr(indices, "epoch", 0))
        return [{"input_ids": ids, "labels": labels} for ids, labels in zip(source, target, strict=True)]

    def _cut(self, dropout: BPEDropout, table: pa.Table, indices: Sequence[int], epoch: int) -> list[list[np.ndarray]]:
        """The sources, and the targets, of some pairs as they are in an epoch."""
        draws = [np.random.default_rng((dropout.seed, epoch, index)) for index in indices]
        sides = []
        for name in ("input_ids", "labels"):
            column = table[name].combine_chunks()
            rows = np.split(column.values.to_numpy(), column.offsets.to_numpy()[1:-1] - column.offsets[0].as_py())
            cut = [dropout(row, draw) for row, draw in zip(rows, draws, strict=True)]
            limit = self.max_length or max(map(len, cut))
            sides.append([new if len(new) <= limit else old for old, new in zip(rows, cut, strict=True)])
        return sides

    def lengths(self, epoch: int = 0) -> Lengths:
        """Source and target tokens of every pair in an epoch, `(number of pairs)` each."""
        if self.dropout is not None:
            parts: list[list[np.ndarray]] = [[], []]
            for start in range(0, len(self), CUT_AT_ONCE):
                indices = range(start, min(start + CUT_AT_ONCE, len(self)))
                for part, rows in zip(
                    parts, self._cut(self.dropout, self._arrow[indices], indices, epoch), strict=True
                ):
                    part.append(np.fromiter(map(len, rows), np.int32, len(rows)))
            return np.concatenate(parts[0]), np.concatenate(parts[1])
        columns = self.dataset.column_names
        if "source_length" in columns and "target_length" in columns:
            table = self.dataset.with_format("arrow", columns=["source_length", "target_length"])[:]
            return table["source_length"].to_numpy(), table["target_length"].to_numpy()
        source, target = zip(*((len(p["input_ids"]), len(p["labels"])) for p in self.dataset), strict=True)
        return np.asarray(source), np.asarray(target)


class PairCollator:
    """
    Pads a batch of `TokenPairs` on the right, without a loop over its sentences.

    Args:
        pad_token_id: what fills `input_ids`; labels are filled with -100.
        pad_to_multiple_of: round both widths up to it (8 for tensor cores).
    """

    def __init__(self, pad_token_id: int, pad_to_multiple_of: int = 1):
        self.pad_token_id, self.pad_to_multiple_of = pad_token_id, pad_to_multiple_of

    def __call__(self, batch: pa.Table | list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns `input_ids` and `attention_mask` `(n, S)` and `labels` `(n, T)`, int64."""
        if isinstance(batch, pa.Table):
            columns = (batch[name].combine_chunks() for name in ("input_ids", "labels"))
            source, target = ((column.offsets.to_numpy(), column.values.to_numpy()) for column in columns)
        else:  # examples from a plain data set
            source, target = (_flatten([pair[name] for pair in batch]) for name in ("input_ids", "labels"))
        input_ids, mask = self._pad(*source, self.pad_token_id)
        labels, _ = self._pad(*target, -100)
        return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}

    def _pad(self, offsets: np.ndarray, values: np.ndarray, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = np.diff(offsets)
        width = -(-int(lengths.max()) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        mask = np.arange(width) < lengths[:, None]  # (n, width)
        padded = np.full(mask.shape, fill, dtype=np.int64)
        padded[mask] = values[offsets[0] : offsets[-1]]
        return torch.from_numpy(padded), torch.from_numpy(mask.astype(np.int64))


def _flatten(lists: list[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, lists)])
    return offsets, np.concatenate([np.asarray(ids) for ids in lists])


__all__ = ["PairCollator", "TokenBatchSampler", "TokenPairs"]
