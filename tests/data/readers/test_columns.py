"""Pairs made into a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmclab.data.readers import columns
from xmclab.data.readers.columns import Targets

pairs = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.5, 1.0, 2.0])), max_size=6)


@pytest.mark.parametrize("together", [1, 2, 100])
@given(st.lists(pairs, max_size=7))
def test_a_pair_counts_once_with_its_largest_relevance(together: int, rows: list[list[tuple[int, float]]]) -> None:
    targets = Targets()
    expected_NL = np.zeros((len(rows), 5), dtype=np.float32)
    for row, entries in enumerate(rows):
        targets.add([column for column, _ in entries], [relevance for _, relevance in entries])
        for column, relevance in entries:
            expected_NL[row, column] = max(expected_NL[row, column], relevance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "SORTED_TOGETHER", together)
        found_NL = targets.matrix(5)
    np.testing.assert_array_equal(found_NL.toarray(), expected_NL)
    assert found_NL.nnz == np.count_nonzero(expected_NL)
    assert found_NL.dtype == np.float32
    for row in range(len(rows)):
        assert np.all(np.diff(found_NL.indices[found_NL.indptr[row] : found_NL.indptr[row + 1]]) > 0)
    assert found_NL.indices.dtype == found_NL.indptr.dtype == np.int32


@pytest.mark.parametrize(("labels", "index"), [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_indices_have_4_bytes_where_they_suffice(labels: int, index: type[np.integer[Any]]) -> None:
    targets = Targets()
    targets.add([labels - 1], [1.0])
    found_NL = targets.matrix(labels)
    assert found_NL.indices.dtype == found_NL.indptr.dtype == index
    assert found_NL.indices.tolist() == [labels - 1]
