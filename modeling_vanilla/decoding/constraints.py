"""Phrases that a translation must contain: beam search with a share of the beam for each number of them that is met.

Post and Vilar 2018 (arXiv 1804.06609), dynamic beam allocation: a hypothesis has a bank, the number of forced tokens
that it has produced; the beam is dealt out to the banks in turn, and a hypothesis may end only with all of them.
"""

from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch

Phrase = tuple[int, ...]
NEVER = -1e9  # the score of what can't be chosen, as in the library's search


class State(NamedTuple):
    """How far a hypothesis is: phrases to come, its last tokens as far as they begin one, and the one just finished."""

    open: tuple[Phrase, ...]
    begun: Phrase = ()
    last: Phrase = ()

    @property
    def left(self) -> int:
        """Tokens to be forced yet; those of the phrase just finished don't count twice, as another's beginning too."""
        return sum(map(len, self.open)) - (len(self.begun) if self.begun != self.last else 0)

    def wanted(self) -> set[int]:
        """Tokens that would bring it on."""
        n = len(self.begun)
        return {phrase[n] for phrase in self.open if phrase[:n] == self.begun != phrase}

    def after(self, token: int, goes_on: bool = False) -> "State":
        """The state after one more token; `goes_on`: it is a part of the word before it."""
        if self.last and goes_on:
            return State((*self.open, self.last), self.last).after(token)  # the phrase was but the beginning of a word
        said = (*self.begun, token)
        while said:
            if said in self.open:
                index = self.open.index(said)
                rest = self.open[:index] + self.open[index + 1 :]
                begins_another = any(phrase[: len(said)] == said != phrase for phrase in rest)
                return State(rest, said if begins_another else (), last=said)
            if any(phrase[: len(said)] == said for phrase in self.open):
                return State(self.open, said)
            said = said[1:]  # broken off; but its end may begin another, or the same
        return State(self.open)


class Constraints:
    """
    Args:
        phrases: of each sentence, the token ids of what its translation must contain; none for most.
        num_beams: K.
        ends: the tokens that end a translation.
        going_on: tokens that go on with the word before them, so that a phrase before one isn't whole.
    """

    def __init__(
        self, phrases: Sequence[Sequence[Sequence[int]]], num_beams: int, ends: Sequence[int],
        going_on: Collection[int] = (),
    ):  # fmt: skip
        self.ends, self.going_on = set(ends), going_on
        self.states = [[State(tuple(tuple(p) for p in row if p))] * num_beams if any(row) else [] for row in phrases]
        self._next: dict[int, list[State]] = {}
        self._met: set[int] = set()  # sentences with a finished translation that has all

    def choose(
        self, sentences: torch.Tensor, log_probs: torch.Tensor, scores: torch.Tensor,
        values: torch.Tensor, beams: torch.Tensor, ids: torch.Tensor,
        over: torch.Tensor, is_last: bool,
    ) -> None:  # fmt: skip
        """
        Replaces the candidates `values`, `beams` and `ids` `(B, C)`, best first, of sentences that have phrases.

        Args:
            sentences: `(B)`, which they are.
            log_probs: `(B, K, V)`.
            scores: `(B, K)`, of the hypotheses so far.
            over: `(B)`, whose candidates are ends alone.
            is_last: whether all end with this token.
        """
        self._next = {}
        K, C = scores.shape[1], values.shape[1]
        for b, sentence in enumerate(sentences.tolist()):
            states = self.states[sentence]
            if not states:
                continue
            found: dict[tuple[int, int], float] = {}
            for value, beam, token in zip(values[b].tolist(), beams[b].tolist(), ids[b].tolist(), strict=True):
                if value > -torch.inf:
                    found[beam, token] = value
            if not over[b]:
                self._add(found, states, scores[b].tolist(), log_probs[b])
            ordered = sorted(found, key=lambda key: -found[key])
            after = {(beam, token): states[beam].after(token, token in self.going_on) for beam, token in ordered}
            left = {key: state.left for key, state in after.items()}
            if not ordered:  # nothing is possible, which is not for us to mend
                continue
            if over[b] or is_last:  # what has all, or else what is nearest to it
                least = 0 if sentence in self._met else min(left.values())
                picked = [key for key in ordered if left[key] == least][:C]
            else:
                ending = [key for key in ordered if not left[key]][:K]
                ending = [key for key in ending if key[1] in self.ends]
                picked = (ending + self._deal([key for key in ordered if key[1] not in self.ends], left, K))[:C]
            if any(not left[key] and key[1] in self.ends for key in picked):
                self._met.add(sentence)
            self._next[sentence] = [after[key] for key in picked]
            self._next[sentence] += [states[0]] * (C - len(picked))
            values[b] = -torch.inf
            for c, (beam, token) in enumerate(picked):
                values[b, c], beams[b, c], ids[b, c] = found[beam, token], beam, token
            for c in range(len(picked), C):
                beams[b, c], ids[b, c] = 0, ids[b, 0]

    def _add(
        self, found: dict[tuple[int, int], float], states: list[State], scores: list[float], log_probs: torch.Tensor
    ) -> None:
        """Adds what brings a hypothesis on, and its best token; removes ends that come too early."""
        best = log_probs.argmax(-1).tolist()
        for beam, state in enumerate(states):
            for token in (*state.wanted(), best[beam]) if scores[beam] > NEVER / 2 else ():
                if (value := float(log_probs[beam, token])) > -torch.inf:
                    found.setdefault((beam, token), scores[beam] + value)
            for token in self.ends:
                if state.left:
                    found.pop((beam, token), None)

    @staticmethod
    def _deal(keys: list[tuple[int, int]], left: dict[tuple[int, int], int], count: int) -> list[tuple[int, int]]:
        """The best of each bank in turn, from the one with least left, until there are `count`."""
        banks: dict[int, list[tuple[int, int]]] = {}
        for key in keys:
            banks.setdefault(left[key], []).append(key)
        turns = zip_longest(*(banks[bank] for bank in sorted(banks)))
        return [key for turn in turns for key in turn if key is not None][:count]

    def go_on(self, sentences: torch.Tensor, order: torch.Tensor) -> None:
        """The candidates `order` `(B, K)` are the next hypotheses."""
        for b, sentence in enumerate(sentences.tolist()):
            if sentence in self._next:
                self.states[sentence] = [self._next[sentence][c] for c in order[b].tolist()]


__all__ = ["NEVER", "Constraints"]
