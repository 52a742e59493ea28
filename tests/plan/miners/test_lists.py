"""Lists of negatives: what is excluded is dropped and counted, and draws are uniform."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.plan.miners import lists
from xmclab.plan.miners.lists import ListMiner


@pytest.mark.parametrize("rows_at_once", [1, 3, 1 << 16])
def test_lists_are_what_is_listed_without_what_is_excluded(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(lists, "ROWS_AT_ONCE", rows_at_once)
    rng = np.random.default_rng(0)
    listed, exclude = rng.random((7, 9)) < 0.4, rng.random((7, 9)) < 0.3
    listed[[2, 6]] = False
    miner = ListMiner()
    rows = np.arange(7)
    assert (miner.sample(rows, 2, sp.csr_array(exclude), rng) == -1).all()
    assert miner.keep(sp.csr_array(listed.astype(np.float32)), sp.csr_array(exclude)) == (listed & exclude).sum()
    assert miner.lengths_N.tolist() == (listed & ~exclude).sum(axis=1).tolist()
    drawn = miner.sample(rows[::-1].copy(), 9, sp.csr_array(exclude), rng)[::-1]
    for row, labels in enumerate(drawn):
        assert sorted(labels[labels >= 0]) == np.flatnonzero(listed[row] & ~exclude[row]).tolist()


def test_a_listed_label_counts_once_whatever_its_score() -> None:
    listed = sp.csr_array((np.array([0.0, 5.0, -2.0, 5.0]), np.array([4, 1, 0, 1]), np.array([0, 4])), shape=(1, 6))
    miner = ListMiner()
    assert miner.keep(listed, sp.csr_array((1, 6), dtype=bool)) == 0
    drawn = miner.sample(np.zeros(6000, np.int64), 1, sp.csr_array((1, 6), dtype=bool), np.random.default_rng(0))
    shares = np.bincount(drawn.ravel(), minlength=6) / len(drawn)
    assert (shares[[2, 3, 5]] == 0).all()
    assert np.abs(shares[[0, 1, 4]] - 1 / 3).max() < 0.03
