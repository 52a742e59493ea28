"""Texts outside memory: everything that a list of strings does, and nothing of its size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmclab.data import texts as module
from xmclab.data.texts import JoinedTexts, PackedTexts, RowNumbers, blocks, content_digest, number_of_distinct

TEXTS = ["", "plain", "Grüße", "日本", "", "x" * 300, "\ud800 alone", "last"]

Make = Callable[[list[str]], Sequence[str]]
SEQUENCES: dict[str, Make] = {"packed": PackedTexts, "joined": lambda some: JoinedTexts(some[:3], [], some[3:])}


@pytest.fixture(params=[1, 7, 1 << 20], autouse=True)
def _small_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in the file, some of it, none of it."""
    monkeypatch.setattr(module, "IN_MEMORY", request.param)
    monkeypatch.setattr(module, "BLOCK", 3)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_it_is_a_sequence_like_a_list(kind: str) -> None:
    made = SEQUENCES[kind](TEXTS)
    assert len(made) == len(TEXTS)
    assert list(made) == TEXTS
    assert [made[row] for row in range(-len(TEXTS), len(TEXTS))] == TEXTS * 2
    assert made[np.int64(2)] == TEXTS[2]  # type: ignore[call-overload]
    for start in (None, 0, 2, 5, 20, -3):
        for stop in (None, 0, 4, 8, 20, -1):
            for step in (None, 2, -1):
                assert made[start:stop:step] == TEXTS[start:stop:step]
    with pytest.raises(IndexError):
        made[len(TEXTS)]
    assert "plain" in made
    assert made.index("last") == 7


def test_it_equals_a_list_of_the_same_texts() -> None:
    packed = PackedTexts(TEXTS)
    assert packed == TEXTS
    assert packed == PackedTexts(TEXTS)
    assert packed != TEXTS[:-1]
    assert packed != [*TEXTS[:-1], "other"]
    assert packed != "text"


@given(st.lists(st.text(max_size=6), max_size=12))
def test_any_texts_come_back(some: list[str]) -> None:
    packed = PackedTexts(some)
    assert list(packed) == some
    assert [text for start, stop in blocks(packed) for text in packed[start:stop]] == some
    assert number_of_distinct(packed) == len(set(some))
    assert content_digest(packed) == content_digest(some)


def test_it_can_be_read_before_all_is_there() -> None:
    packed = PackedTexts()
    for row, text in enumerate(TEXTS):
        packed.append(text)
        assert packed[row] == text
        assert list(packed) == TEXTS[: row + 1]


def test_a_digest_is_of_the_texts_and_of_where_they_begin() -> None:
    digests = {
        content_digest(*some)
        for some in ([["ab", "c"]], [["a", "bc"]], [["abc"]], [["abc", ""]], [["ab"], ["c"]], [["ab", "C"]], [[]])
    }
    assert len(digests) == 7


def test_long_texts_make_short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 10)
    packed = PackedTexts(["123456", "123456", "1234", "x" * 50, "1", "2", "3", "4"])
    assert list(blocks(packed)) == [(0, 1), (1, 3), (3, 4), (4, 7), (7, 8)]


def test_memory_does_not_hold_the_texts() -> None:
    tracemalloc.start()
    packed = PackedTexts(f"a text of some length {row:09}" for row in range(40_000))
    total = sum(map(len, packed))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 40_000 * 31
    assert peak < 40_000 * 9 + module.IN_MEMORY * 1.3 + 500_000  # a list takes 3.5 MB


def test_row_numbers_are_a_sequence() -> None:
    names = RowNumbers(5)
    assert (len(names), names[3], names[-1], names[1:3], list(names)[2]) == (5, "3", "4", ["1", "2"], "2")
    with pytest.raises(IndexError):
        names[5]
