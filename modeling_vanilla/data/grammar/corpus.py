"""The pairs of the built-in corpus and its splits."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

from modeling_vanilla.data.grammar.clause import Clause, Combination, Sentence, sentence
from modeling_vanilla.data.grammar.events import draw_event, draw_question
from modeling_vanilla.data.grammar.states import (
    draw_although,
    draw_animal,
    draw_because,
    draw_but,
    draw_command,
    draw_comparison,
    draw_description,
    draw_existence,
    draw_identity,
    draw_if,
    draw_location,
    draw_state,
    draw_thought,
)
from modeling_vanilla.data.grammar.vocabulary import NAME, pick

MAX_PAIRS = 1_000_000  # the grammar holds many times more, but finding new ones would get slow
MAX_HELD_OUT = 50_000
HELD_OUT_SHARE = 0.1

WEIGHTS: tuple[tuple[int, Callable[[Random], Clause | Sentence]], ...] = (
    (44, draw_event), (14, draw_question), (8, draw_state), (7, draw_description), (6, draw_comparison),
    (3, draw_location), (6, draw_existence), (3, draw_identity), (2, draw_animal), (3, draw_command),
    (3, draw_because), (3, draw_if), (3, draw_although), (3, draw_but), (3, draw_thought),
)  # fmt: skip
DRAWS = [draw for weight, draw in WEIGHTS for _ in range(weight)]


def draw_sentence(rng: Random) -> Sentence:
    """Draw one sentence of any kind.

    Args:
        rng: source of chance; only its `random()` is called.

    Returns:
        The sentence in both languages, with the combinations of words that it makes.
    """
    drawn = pick(rng, DRAWS)(rng)
    finished = drawn if isinstance(drawn, Sentence) else sentence(drawn)
    # Where a name would come twice, both languages would rather use a pronoun.
    return draw_sentence(rng) if any(finished.source.count(name.zh) > 1 for name in NAME) else finished


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def is_held_out(combination: Combination) -> bool:
    """Tell whether a combination is kept from the training split.

    Args:
        combination: two Chinese words, such as a verb and its object.

    Returns:
        True for about a tenth of all combinations, always the same ones.
    """
    return _fraction("~".join(combination)) < HELD_OUT_SHARE


def _distinct(seed: int) -> Iterator[Sentence]:
    """Draw sentences for ever, each source once."""
    rng, seen = Random(seed), set()
    while True:
        drawn = draw_sentence(rng)
        if drawn.source not in seen:
            seen.add(drawn.source)
            yield drawn


def _check(name: str, count: int, limit: int) -> None:
    if not 0 <= count <= limit:
        raise ValueError(f"{name} is {count}, but only 0 to {limit} pairs can be drawn: ask for a number in that range")


def generate_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Generate sentence pairs, no source twice.

    Args:
        count: number of pairs, at most `MAX_PAIRS`.
        seed: of the random numbers. The same seed gives the same pairs on every platform, and a longer list starts
            with the shorter one.

    Returns:
        Pairs of a Chinese source and its English target.

    Raises:
        ValueError: for a count below 0 or above `MAX_PAIRS`.

    Example:
        >>> pairs = generate_pairs(1000, seed=1)
    """
    _check("count", count, MAX_PAIRS)
    return [(drawn.source, drawn.target) for drawn in islice(_distinct(seed), count)]


def built_in_splits(
    train: int = 20_000, validation: int = 500, test: int = 500, seed: int = 0
) -> dict[str, list[tuple[str, str]]]:
    """Generate the splits of the built-in corpus.

    Not only sentences but combinations of two words are held out: a verb with its object (买 词典) or its place
    (跑步 公园), an adjective with its noun (贵 手表), a means with its destination (坐地铁 机场), a thing with the spot
    where it is (猫 床下面). A tenth of them, those of `is_held_out`, occurs in no training sentence, though both words
    do, in other combinations; every validation and test sentence holds at least one of that tenth.

    Args:
        train: number of training pairs, at most `MAX_PAIRS`.
        validation: number of validation pairs, at most `MAX_HELD_OUT`.
        test: number of test pairs, at most `MAX_HELD_OUT`.
        seed: as in `generate_pairs`; which combinations are held out does not depend on it.

    Returns:
        The pairs of "train", "validation" and "test". The size of one does not change what is in another.

    Raises:
        ValueError: for a number below 0 or above its limit.
    """
    wanted = {"train": train, "validation": validation, "test": test}
    for name, count in wanted.items():
        _check(name, count, MAX_PAIRS if name == "train" else MAX_HELD_OUT)
    splits: dict[str, list[tuple[str, str]]] = {name: [] for name in wanted}
    sentences = _distinct(seed)
    while any(len(splits[name]) < count for name, count in wanted.items()):
        drawn = next(sentences)
        name = "train"
        if any(map(is_held_out, drawn.combinations)):
            name = "validation" if _fraction(drawn.target) < 0.5 else "test"  # by target: 他们 and 她们 stay together
        if len(splits[name]) < wanted[name]:
            splits[name].append((drawn.source, drawn.target))
    return splits
