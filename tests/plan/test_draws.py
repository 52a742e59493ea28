"""Draws without repetition: every subset equally often."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from xmclab.plan.draws import distinct


def test_distinct_draws_every_subset_equally_often() -> None:
    subsets = Counter(frozenset(row) for row in distinct(np.full(10000, 5), 2, np.random.default_rng(0)).tolist())
    assert set(subsets) == {frozenset(pair) for pair in itertools.combinations(range(5), 2)}
    assert max(abs(count / 10000 - 0.1) for count in subsets.values()) < 0.02
    assert sorted(distinct(np.array([2]), 4, np.random.default_rng(0))[0].tolist()) == [-1, -1, 0, 1]
