"""The loop over test rows behind all metrics, compiled; the numpy version in `metrics` defines what it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xmclab.kernels.dispatch import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]
    Indices = NDArray[Any]  # int32 or int64, as scipy chose

WORDS = 64  # of 64 bits: a row's true labels leave most of them free


@jit
def add_rows(
    ids_NK: Ids,
    indptr: Indices,
    indices: Indices,
    weights_L: Floats,
    kind_N: Ids,
    group_L: NDArray[np.int16],
    hits_GSK: Ids,
    gains_GSK: Floats,
    best_SK: Floats,
) -> None:
    """`metrics._add_rows`."""
    width = best_SK.shape[1]
    depth = min(width, ids_NK.shape[1])
    bits = np.zeros(WORDS, np.uint64)  # one per remainder of a label: most false labels are rejected here
    largest = np.empty(width)  # weights of the row's true labels, descending
    for row in range(len(kind_N)):
        kind, start, end = kind_N[row], indptr[row], indptr[row + 1]
        filled = 0
        for entry in range(start, end):
            word, bit = _bit(indices[entry])
            bits[word] |= bit
            weight = weights_L[indices[entry]]
            if filled < width:
                filled += 1
            elif weight <= largest[width - 1]:
                continue
            place = filled - 1
            while place > 0 and largest[place - 1] < weight:
                largest[place] = largest[place - 1]
                place -= 1
            largest[place] = weight
        for place in range(filled):
            best_SK[kind, place] += largest[place]
        for place in range(depth):
            label = ids_NK[row, place]
            word, bit = _bit(label)
            if bits[word] & bit and _contains(indices, start, end, label):
                hits_GSK[group_L[label], kind, place] += 1
                gains_GSK[group_L[label], kind, place] += weights_L[label]
        for entry in range(start, end):
            bits[_bit(indices[entry])[0]] = 0


@jit
def _bit(label: int) -> tuple[int, np.uint64]:
    """(word, bit) of the label."""
    return (label >> 6) & (WORDS - 1), np.uint64(1) << np.uint64(label & 63)


@jit
def _contains(ascending: Indices, start: int, end: int, wanted: int) -> bool:
    """Whether the number is in that range of the array."""
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < end and ascending[low] == wanted
