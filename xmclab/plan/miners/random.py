"""Random negatives: labels drawn uniformly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Miner
from xmclab.plan.csr import row_pairs, sorted_unique
from xmclab.plan.draws import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class RandomMiner(Miner):
    """Different labels drawn uniformly from all that are not excluded for the query."""

    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, n] label ids, -1 where a query has fewer than n that are not excluded."""
        num_labels = exclude_NL.shape[1]
        excluded = row_pairs(exclude_NL, rows_Q)
        row_E, label_E = np.divmod(sorted_unique(excluded.row_E * num_labels + excluded.column_E), num_labels)
        counts_Q = np.bincount(row_E, minlength=len(rows_Q))
        starts_Q = np.cumsum(counts_Q) - counts_Q
        ranks_Qn = distinct(num_labels - counts_Q, n, rng)
        # The r-th allowed label is r plus the number of excluded ones before it, that is with (label - its place) <= r.
        allowed_before_E = label_E - (np.arange(len(row_E)) - starts_Q[row_E])
        stride = num_labels + 1
        cells_Qn = np.arange(len(rows_Q))[:, None] * stride + ranks_Qn
        skipped_Qn = np.searchsorted(row_E * stride + allowed_before_E, cells_Qn, side="right") - starts_Q[:, None]
        return np.where(ranks_Qn < 0, -1, ranks_Qn + skipped_Qn)
