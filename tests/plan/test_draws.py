"""Draws without repetition: every subset equally often; with repetition: every number, each time."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from xmclab.plan.draws import distinct, repeated


def test_distinct_draws_every_subset_equally_often() -> None:
    subsets = Counter(frozenset(row) for row in distinct(np.full(10000, 5), 2, np.random.default_rng(0)).tolist())
    assert set(subsets) == {frozenset(pair) for pair in itertools.combinations(range(5), 2)}
    assert max(abs(count / 10000 - 0.1) for count in subsets.values()) < 0.02
    assert sorted(distinct(np.array([2]), 4, np.random.default_rng(0))[0].tolist()) == [-1, -1, 0, 1]


def test_many_numbers_are_distinct_too() -> None:
    sizes_Q = np.array([5000, 0, 700, 4000, 4001])
    drawn_Qn = distinct(sizes_Q, 4000, np.random.default_rng(0))
    for size, row in zip(sizes_Q.tolist(), drawn_Qn.tolist(), strict=True):
        numbers = [number for number in row if number >= 0]
        assert len(set(numbers)) == len(numbers) == min(size, 4000)
        assert not numbers or max(numbers) < size
    assert (drawn_Qn[0] >= 4000).mean() == pytest.approx(0.2, abs=0.03)
    again_Qn = distinct(sizes_Q, 4000, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn_Qn, again_Qn)


def test_repeated_draws_every_sequence_equally_often() -> None:
    pairs = Counter(tuple(row) for row in repeated(np.full(9000, 3), 2, np.random.default_rng(0)).tolist())
    assert set(pairs) == set(itertools.product(range(3), repeat=2))
    assert max(abs(count / 9000 - 1 / 9) for count in pairs.values()) < 0.02
    few = repeated(np.array([0, 1, 2]), 4, np.random.default_rng(0))
    assert few[:2].tolist() == [[-1] * 4, [0] * 4]
    assert set(few[2].tolist()) <= {0, 1}
    assert repeated(np.array([], dtype=np.int64), 3, np.random.default_rng(0)).shape == (0, 3)
