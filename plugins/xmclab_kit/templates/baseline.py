"""The most frequent labels, the same for every query.

Formula:  s_l = the number of training queries with label l
Use when: a model should show that it reads the query at all
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xmclab
from xmclab.api import Baseline, Dataset, Ranking


@dataclass
class PartName(Baseline):
    """The most frequent labels of the training queries, without reading the query."""

    at_least: int = xmclab.option(1, "training queries that a label needs", ge=0)

    def rank(self, data: Dataset, k: int) -> Ranking:
        """The k best labels of every test query, without its filter pairs."""
        targets_NL, filter_NL = data.real.targets_NL, data.test.filter_NL
        frequency_L = np.bincount(targets_NL.indices, minlength=data.num_labels)
        order_L = np.argsort(-frequency_L, kind="stable")
        order_L = order_L[frequency_L[order_L] >= self.at_least]
        ids_NK = np.full((len(data.test), k), -1)
        scores_NK = np.full((len(data.test), k), -np.inf, dtype=np.float32)
        for row in range(len(data.test)):
            start, end = filter_NL.indptr[row : row + 2]
            left_out = filter_NL.indices[start:end]
            candidates = order_L[: k + len(left_out)]
            ids = candidates[~np.isin(candidates, left_out)][:k]
            ids_NK[row, : len(ids)] = ids
            scores_NK[row, : len(ids)] = frequency_L[ids]
        return Ranking(ids_NK, scores_NK)
