"""Frequent labels as negatives, the same for the whole batch.

Formula:  labels in random order, P(l first) ~ (1 + frequency_l)^power; a query takes
          the first n that are neither its own nor unknown
Use when: the pool should stay small: its queries share their negatives
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import xmclab
from numpy.typing import NDArray
from xmclab.api import Miner


@dataclass
class PartName(Miner):
    """Labels drawn by their frequency, in one order for all queries of a batch."""

    power: float = xmclab.option(
        0.5, "exponent of the frequency; 0: all labels alike", ge=0
    )

    def sample(
        self,
        rows_Q: NDArray[np.int64],
        n: int,
        exclude_NL: sp.csr_array,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """[Q, n] label ids, -1 where a query has fewer than n that are not excluded."""
        num_labels = exclude_NL.shape[1]
        frequency_L = 1.0 + np.bincount(exclude_NL.indices, minlength=num_labels)
        # The shortest of exponential waiting times: a draw without replacement.
        order_L = np.argsort(rng.exponential(size=num_labels) / frequency_L**self.power)
        labels_Qn = np.full((len(rows_Q), n), -1)
        for labels_n, row in zip(labels_Qn, rows_Q, strict=True):
            start, end = exclude_NL.indptr[row : row + 2]
            excluded = exclude_NL.indices[start:end]
            candidates = order_L[: n + len(excluded)]
            allowed = candidates[~np.isin(candidates, excluded)][:n]
            labels_n[: len(allowed)] = allowed
        return labels_Qn
