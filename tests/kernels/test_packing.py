"""The compiled packing of tokens is that of numpy."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xmclab.api import Ragged
from xmclab.kernels import packing as pack_loops
from xmclab.model.encoders import packed

PADDING = 1


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=9), st.sampled_from([None, PADDING]))
def test_packing_is_that_of_numpy(texts: list[list[int]], padding: int | None) -> None:
    ids = np.array(list(chain.from_iterable(texts)), np.int32)
    tokens = Ragged(ids, np.cumsum([0, *map(len, texts)], dtype=np.int64))
    *expected, counts = packed._arrange(tokens, padding)
    *found, found_counts = pack_loops.arrange(tokens, padding)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found_counts[: len(counts)], counts)
    assert not found_counts[len(counts) :].any()
