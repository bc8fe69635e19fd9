"""Limits on length, and cutting what is too long."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modeling_vanilla.decoding.lengths import MaxLengthPerSource, join_pieces, max_new_tokens, split_text


def test_limit_is_the_papers():
    assert max_new_tokens(10) == 60


def test_each_source_ends_at_its_own_limit():
    limit = MaxLengthPerSource([52, 55], rows_per_source=2, eos_token_id=3, device=torch.device("cpu"))
    for length, ended in ((51, [False] * 4), (52, [True, True, False, False]), (55, [True] * 4)):
        scores = limit(torch.zeros(4, length, dtype=torch.long), torch.zeros(4, 6))
        assert [row.isfinite().sum().item() == 1 for row in scores] == ended
        assert all(row[3] == 0 for row in scores)


def short(limit):
    return lambda text: len(text) <= limit


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One two. Three four. Five.", 15, ["One two.", "Three four.", "Five."]),
        ("One two. Three four. Five.", 20, ["One two. Three four.", "Five."]),
        ("One two three four five six", 13, ["One two three", "four five six"]),
        ("他来了。我走了。你呢？", 8, ["他来了。我走了。", "你呢？"]),
        ("abcdefgh", 3, ["ab", "cd", "ef", "gh"]),
        ("A b. cccccccc d.", 4, ["A b.", "cccc", "cccc", "d."]),
        ("fits", 10, ["fits"]),
    ],
)
def test_cuts_after_sentences_then_words_then_characters(text, limit, pieces):
    assert split_text(text, short(limit)) == pieces


@given(st.text(alphabet="ab .。！\n", min_size=1), st.integers(1, 10))
def test_nothing_but_white_space_is_lost_and_every_piece_fits(text, limit):
    pieces = split_text(text, short(limit))
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(len(piece) <= limit for piece in pieces)


def test_a_long_text_is_measured_a_few_times_over():
    measured = 0

    def fits(text):
        nonlocal measured
        measured += len(text)
        return len(text) <= 500

    text = "word " * 4000
    assert max(map(len, split_text(text, fits))) == 499
    assert measured < 30 * len(text)


def test_a_character_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="one character"):
        split_text("ab", lambda text: False)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["A.", "B."], "A. B."),
        (["甲。", "乙。"], "甲。乙。"),
        (["", "B."], "B."),
        ([], ""),
        (["甲。", "B."], "甲。B."),
        (["저는 학교에", "갑니다"], "저는 학교에 갑니다"),
        (["Nice 👍", "See you"], "Nice 👍 See you"),
        (["好👍", "「乙」", "カ"], "好👍「乙」カ"),
        (["ผมไป", "คุณมา"], "ผมไป คุณมา"),  # between sentences Thai has spaces
    ],
)
def test_pieces_are_joined_as_their_script_is_written(pieces, text):
    assert join_pieces(pieces) == text
