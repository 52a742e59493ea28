"""Queries and labels of the same text, and labels of the same text."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset, Split
from xmclab.data import open_data
from xmclab.data.same_text import filter_same_text, spare_same_text
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve

LABELS = ["a", "b", "a", "c", "a", "b"]


def dataset() -> Dataset:
    rng = np.random.default_rng(0)

    def half(rows: int) -> Split:
        targets, filters = (sp.csr_array((rng.random((rows, 6)) < 0.3).astype(np.float32)) for _ in range(2))
        return Split([""] * rows, [""] * rows, targets, filters)

    return Dataset("d", half(40), half(5), LABELS, list("123456"), "f")


def test_labels_alike_are_added_to_the_training_filter_alone() -> None:
    before, after = dataset(), spare_same_text(dataset())
    true, expected = before.train.targets_NL.toarray() > 0, before.train.filter_NL.toarray() > 0
    for row in range(40):
        for positive in np.flatnonzero(true[row]):
            for label, text in enumerate(LABELS):
                if text == LABELS[positive] and not true[row, label]:
                    expected[row, label] = True
    np.testing.assert_array_equal(after.train.filter_NL.toarray() > 0, expected)
    np.testing.assert_array_equal(after.train.targets_NL.toarray(), before.train.targets_NL.toarray())
    np.testing.assert_array_equal(after.test.filter_NL.toarray(), before.test.filter_NL.toarray())
    assert after.train.filter_NL.has_sorted_indices
    assert after.label_texts == before.label_texts
    assert after.fingerprint != before.fingerprint


def with_queries(texts: list[str]) -> Dataset:
    """Of six queries; the first is true for the first label, the second has the second label filtered already."""
    true, known = np.zeros((2, len(texts), 6), np.float32)
    true[0, 0] = known[1, 1] = 1
    split = Split(texts, texts, sp.csr_array(true), sp.csr_array(known))
    return dataclasses.replace(dataset(), train=split, test=split)


def test_a_label_with_the_text_of_a_query_is_filtered_unless_it_is_true(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xmclab")
    before = with_queries(["a", "b", "c", "d", "c", ""])
    after = filter_same_text(before, "filter", by_default=False)
    # Labels 0, 2 and 4 are "a" and 1 and 5 are "b": only true pairs, and those filtered before, are not added.
    expected = {(0, 2), (0, 4), (1, 1), (1, 5), (2, 3), (4, 3)}
    for split in (after.train, after.test):
        assert set(zip(*map(list, split.filter_NL.nonzero()), strict=True)) == expected
    np.testing.assert_array_equal(after.train.targets_NL.toarray(), before.train.targets_NL.toarray())
    assert after.fingerprint != before.fingerprint
    assert "d: 8 of 12 queries have the text of a label; 10 such pairs are left out" in caplog.text
    assert "d: 2 of 12 queries list a label with their own text, which therefore stays" in caplog.text


@pytest.mark.parametrize(("choice", "by_default", "said"), [("keep", True, ""), ("auto", False, "no filter pair")])
def test_such_pairs_stay_where_they_are_wanted(
    choice: str, by_default: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "xmclab")
    before = with_queries(["a", "b", "c"])
    assert filter_same_text(before, choice, by_default) is before  # type: ignore[arg-type]
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_data_without_such_pairs_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xmclab")
    before = with_queries(["x", "y"])
    assert filter_same_text(before, "auto", by_default=True) is before
    assert not caplog.text


def test_tables_are_filtered_by_default_and_other_layouts_only_on_demand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.csv").write_text("text,labels\n" + "".join(f"q{n},q{n + 1}|q{n % 3}\n" for n in range(20)))
    data = f"data={tmp_path / 'mine.csv'}"

    def pairs(*overrides: str) -> int:
        found = open_data(resolve([*overrides], default_registry()))
        return found.train.filter_NL.nnz + found.test.filter_NL.nnz

    assert pairs(data) == 17  # q3 to q19; q0 to q2 have themselves as labels, and q20 is no query
    assert pairs(data, "data.same_text=keep") == 0
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, text in {
        "trn_X": "a\nb\n",
        "tst_X": "c\n",
        "Y": "a\nd\n",
        "trn_X_Y": "1:1\n0:1\n",
        "tst_X_Y": "0:1\n",
    }.items():
        (folder / f"{name}.txt").write_text(text)
    assert pairs(f"data={folder}") == 0
    assert "1 of 3 queries have the text of a label that no filter pair leaves out" in caplog.text
    assert pairs(f"data={folder}", "data.same_text=filter") == 1
