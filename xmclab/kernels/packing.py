"""Packing the tokens of texts, compiled; bit for bit what `packed` does in numpy.

A few thousand tokens are not worth importing numba: `packed` uses it if it is already loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xmclab.kernels.dispatch import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from xmclab.api import Ragged

    Ids = NDArray[np.int32]
    Counts = NDArray[np.int64]

NO_PADDING = -1  # not an id


def arrange(tokens: Ragged, padding: int | None) -> tuple[NDArray[Any], ...]:
    """See `packed._arrange`."""
    return _arrange(tokens.ids, tokens.offsets, NO_PADDING if padding is None else padding)


@jit
def _arrange(ids_T: Ids, offset_B: Counts, padding: int) -> tuple[Ids, Ids, Counts, Counts, Counts]:
    texts = len(offset_B) - 1
    longest = 0
    for text in range(texts):
        longest = max(longest, offset_B[text + 1] - offset_B[text])
    counts = np.zeros(longest + 1, np.int64)
    for text in range(texts):
        counts[offset_B[text + 1] - offset_B[text]] += 1
    rank, start = np.zeros_like(counts), np.zeros_like(counts)  # of the next text of each length, and of its tokens
    for length in range(1, longest + 1):
        rank[length] = rank[length - 1] + counts[length - 1]
        start[length] = start[length - 1] + counts[length - 1] * (length - 1)
    packed_T, position_T = np.empty_like(ids_T), np.empty_like(ids_T)
    packed_offset_B, rank_B = np.zeros_like(offset_B), np.empty(texts, np.int64)
    for text in range(texts):
        length = offset_B[text + 1] - offset_B[text]
        to = start[length]
        position = padding + 1
        for place in range(length):
            token = ids_T[offset_B[text] + place]
            packed_T[to + place] = token
            is_padding = token == padding
            position_T[to + place] = padding if is_padding else position
            position += 0 if is_padding else 1
        rank_B[text] = rank[length]
        packed_offset_B[rank[length] + 1] = to + length
        rank[length] += 1
        start[length] += length
    return packed_T, position_T, packed_offset_B, rank_B, counts
