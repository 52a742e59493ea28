"""Reading sparse rows agrees with the dense matrix."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.plan.csr import contains, find, row_pairs, sorted_unique


def random_matrix(seed: int) -> tuple[np.random.Generator, sp.csr_array]:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 12, size=2)
    dense = (rng.random(shape) < rng.random()) * rng.random(shape).astype(np.float32)
    return rng, sp.csr_array(dense)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_row_pairs_lists_the_rows_asked_for(seed: int) -> None:
    rng, matrix = random_matrix(seed)
    rows = rng.permutation(matrix.shape[0])[: rng.integers(0, matrix.shape[0] + 1)]
    pairs = row_pairs(matrix, rows)
    rebuilt = np.zeros((len(rows), matrix.shape[1]), dtype=np.float32)
    rebuilt[pairs.row_E, pairs.column_E] = pairs.value_E
    assert np.array_equal(rebuilt, matrix.toarray()[rows])
    assert (np.diff(pairs.row_E) >= 0).all()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_contains_is_the_dense_lookup(seed: int) -> None:
    rng, matrix = random_matrix(seed)
    rows = rng.permutation(matrix.shape[0])
    columns = rng.integers(-1, matrix.shape[1] + 2, size=(len(rows), 5))
    dense = np.pad(matrix.toarray(), [(0, 0), (0, 2)])
    expected = [[c >= 0 and dense[r, c] > 0 for c in cs] for r, cs in zip(rows, columns, strict=True)]
    assert np.array_equal(contains(matrix, rows, columns), expected)


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9)), st.lists(st.integers(-9, 9)))
def test_find_and_sorted_unique(known: list[int], wanted: list[int]) -> None:
    ascending = sorted_unique(np.array(known, dtype=np.int64))
    assert ascending.tolist() == sorted(set(known))
    place, found = find(ascending, np.array(wanted, dtype=np.int64))
    assert found.tolist() == [number in known for number in wanted]
    assert [ascending[p] for p in place[found]] == [number for number in wanted if number in known]
