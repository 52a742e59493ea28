"""Reading many rows of a sparse matrix at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Pairs(NamedTuple):
    """Stored entries of some rows of a matrix, row after row (E entries)."""

    row_E: NDArray[np.int64]  # position in the rows asked for, ascending
    column_E: NDArray[np.int64]
    value_E: NDArray[np.float32]

    def where(self, kept_E: NDArray[np.bool_]) -> Pairs:
        """The entries of a mask."""
        return Pairs(self.row_E[kept_E], self.column_E[kept_E], self.value_E[kept_E])


def row_pairs(matrix_NL: sp.csr_array, rows_Q: NDArray[np.int64]) -> Pairs:
    """All entries of these rows; the columns of a row ascend if the matrix is in canonical form."""
    starts_Q = matrix_NL.indptr[rows_Q].astype(np.int64)
    lengths_Q = matrix_NL.indptr[rows_Q + 1] - starts_Q
    row_E = np.repeat(np.arange(len(rows_Q)), lengths_Q)
    before_Q = np.cumsum(lengths_Q) - lengths_Q
    entry_E = (starts_Q - before_Q)[row_E] + np.arange(len(row_E))
    return Pairs(row_E, matrix_NL.indices[entry_E].astype(np.int64), matrix_NL.data[entry_E])


def contains(matrix_NL: sp.csr_array, rows_Q: NDArray[np.int64], columns_QK: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[Q, K] whether each (row, column) is an entry of the matrix; never for a column outside it."""
    stored = row_pairs(matrix_NL, rows_Q)
    width = matrix_NL.shape[1]
    cells_QK = np.arange(len(rows_Q))[:, None] * width + columns_QK
    _, found_QK = find(np.sort(stored.row_E * width + stored.column_E), cells_QK)
    return found_QK & (columns_QK >= 0) & (columns_QK < width)


def find(ascending: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(place of each wanted number in an ascending array, whether it is there)."""
    place = np.searchsorted(ascending, wanted)
    if len(ascending) == 0:
        return place, np.zeros(wanted.shape, dtype=np.bool_)
    return place, ascending[np.minimum(place, len(ascending) - 1)] == wanted


def sorted_unique(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct numbers, ascending; by sorting, which is faster on integers than the hash table of `np.unique`."""
    values = np.sort(values)
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = values[1:] != values[:-1]
    return values[first]
