"""A new split: nothing is lost, and what would give the answer away is filtered."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset, Split
from xmclab.errors import DataError
from xmclab_datatools.resplit import resplit
from xmclab_datatools.write import Contents


def items(seed: int, number: int = 40) -> tuple[Dataset, Contents]:
    """Items that are queries and labels; two labels share a text, and some items are no labels."""
    rng = np.random.default_rng(seed)
    labels = [f"item {item}" for item in range(number - 5)] + ["item 3"]
    targets = sp.csr_array((rng.random((number, len(labels))) < 0.1).astype(np.float32))
    texts = [f"item {item}" for item in range(number)]
    none = sp.csr_array(targets.shape, dtype=np.float32)
    split = Split(texts, texts, targets, none)
    half = dataclasses.replace(split, texts=texts[:30], names=texts[:30], targets_NL=targets[:30], filter_NL=none[:30])
    rest = dataclasses.replace(split, texts=texts[30:], names=texts[30:], targets_NL=targets[30:], filter_NL=none[30:])
    contents = Contents([f"c{row}" for row in range(30)], [f"c{row}" for row in range(30, number)], [""] * len(labels))
    return Dataset("items", half, rest, labels, labels, ""), contents


def pairs(split: Split, labels: list[str], matrix: sp.csr_array) -> set[tuple[str, str]]:
    return {(split.texts[row], labels[column]) for row, column in zip(*matrix.nonzero(), strict=True)}


@pytest.mark.parametrize("seed", range(5))
def test_filters_by_a_double_loop(seed: int) -> None:
    data, contents = items(seed)
    names = list(data.label_texts)
    before = pairs(data.train, names, data.train.targets_NL) | pairs(data.test, names, data.test.targets_NL)
    cut, new_contents = resplit(data, contents, 0.3, seed)

    train_pairs = pairs(cut.train, names, cut.train.targets_NL)
    own = {(text, text) for text in names}
    back = {(a, b) for b, a in train_pairs if b in names}
    filtered = {(a, b) for a, b in own | back if a in set(cut.test.texts)}
    assert pairs(cut.test, names, cut.test.filter_NL) == filtered
    assert pairs(cut.train, names, cut.train.filter_NL) == {(a, b) for a, b in own if a in set(cut.train.texts)}
    assert train_pairs == {(a, b) for a, b in before if a in set(cut.train.texts)}
    test_pairs = pairs(cut.test, names, cut.test.targets_NL)
    assert test_pairs == {(a, b) for a, b in before if a in set(cut.test.texts)} - filtered

    assert len(cut.test) == 12
    assert sorted([*cut.train.texts, *cut.test.texts]) == sorted([*data.train.texts, *data.test.texts])
    for split, texts in ((cut.train, new_contents.train), (cut.test, new_contents.test)):
        assert [f"item {content[1:]}" for content in texts] == split.texts
        assert split.names == split.texts


def test_filter_pairs_of_before_are_kept() -> None:
    data, contents = items(0)
    known = sp.csr_array(([1.0], ([2], [7])), shape=data.train.filter_NL.shape, dtype=np.float32)
    filtered = dataclasses.replace(data, train=dataclasses.replace(data.train, filter_NL=known))
    cut, _ = resplit(filtered, contents, 0.3, 1)
    names = list(data.label_texts)
    kept = pairs(cut.train, names, cut.train.filter_NL) | pairs(cut.test, names, cut.test.filter_NL)
    assert ("item 2", "item 7") in kept


def test_the_seed_decides() -> None:
    one, other, again = (resplit(*items(0), 0.3, seed)[0].test.texts for seed in (1, 2, 1))
    assert one == again
    assert one != other


def test_one_text_cannot_be_split() -> None:
    data, contents = items(0)
    same = [dataclasses.replace(split, texts=["x"] * len(split)) for split in (data.train, data.test)]
    with pytest.raises(DataError, match="cannot hold out test queries from 40 queries with 1 distinct texts"):
        resplit(dataclasses.replace(data, train=same[0], test=same[1]), contents, 0.3, 0)
