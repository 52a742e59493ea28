"""A list of labels for each training query, and draws from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Miner
from xmclab.plan.csr import find, row_pairs, sorted_unique
from xmclab.plan.draws import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_AT_ONCE = 1 << 16


@dataclass
class ListMiner(Miner):
    """Labels drawn from lists that `prepare` makes, once for all epochs; none before."""

    def __post_init__(self) -> None:
        self._labels_E: NDArray[np.int32] | None = None  # row after row, with -1 at the end
        self._offsets_N = np.zeros(1, dtype=np.int64)

    def keep(self, listed_NL: sp.csr_array, exclude_NL: sp.csr_array) -> int:
        """Take the entries of this matrix as the lists, once each, without those excluded; the number of these."""
        num_labels, dropped = exclude_NL.shape[1], 0
        labels, lengths = [], [np.zeros(1, dtype=np.int64)]
        for start in range(0, exclude_NL.shape[0], ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, exclude_NL.shape[0]))
            listed, excluded = row_pairs(listed_NL, rows), row_pairs(exclude_NL, rows)
            cells_E = sorted_unique(listed.row_E * num_labels + listed.column_E)
            _, found_E = find(np.sort(excluded.row_E * num_labels + excluded.column_E), cells_E)
            row_E, label_E = np.divmod(cells_E[~found_E], num_labels)
            dropped += int(np.count_nonzero(found_E))
            labels.append(label_E.astype(np.int32))
            lengths.append(np.bincount(row_E, minlength=len(rows)))
        self._offsets_N = np.cumsum(np.concatenate(lengths))
        self._labels_E = np.concatenate([*labels, np.array([-1], dtype=np.int32)])
        return dropped

    @property
    def lengths_N(self) -> NDArray[np.int64]:
        """How many labels the list of each query has."""
        return np.diff(self._offsets_N)

    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, n] labels drawn uniformly, without replacement, from lists made with the same `exclude_NL`."""
        if self._labels_E is None:
            return np.full((len(rows_Q), n), -1, dtype=np.int64)
        places_Qn = distinct(self.lengths_N[rows_Q], n, rng)
        entry_Qn = np.where(places_Qn < 0, -1, self._offsets_N[rows_Q][:, None] + places_Qn)
        return self._labels_E[entry_Qn].astype(np.int64)
