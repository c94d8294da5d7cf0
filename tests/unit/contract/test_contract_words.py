"""Words around numbers, and sentences as a person reads them."""

from __future__ import annotations

import pytest

from agently_kernel.contract.words import counted, sentence


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234567, "1,234,567 files")]
)
def test_a_noun_agrees_with_its_number(number: int, words: str) -> None:
    assert counted(number, "file") == words


def test_an_irregular_plural_can_be_given() -> None:
    assert [counted(n, "match", "matches") for n in (1, 2)] == ["1 match", "2 matches"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("the store is full; make room", "The store is full; make room."),
        ("It is one already.", "It is one already."),
        ("Really?", "Really?"),
        ("/a/b cannot be read", "/a/b cannot be read."),
        ("--input: 'x' is wrong", "--input: 'x' is wrong."),
        ("c.AgentlyKernel.x is not valid", "c.AgentlyKernel.x is not valid."),
        ("go.mod names others", "go.mod names others."),
        ("timeout", "timeout."),
        ("two lines\nof text", "Two lines\nof text."),
        ("", ""),
    ],
)
def test_a_sentence_begins_and_ends_like_one(text: str, read: str) -> None:
    assert sentence(text) == read == sentence(read)
