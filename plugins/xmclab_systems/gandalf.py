"""Gandalf: the text of every label as one more training query, with soft targets from co-occurring labels.

Formula:  y_lm = c_lm / c_ll  for c_lm / c_ll >= threshold, and y_ll = 1
Where:    c_lm training queries that have both l and m, so that y_lm is the share of l's queries that also have m;
          of each row only the `most` largest are kept (of equal ones, the smaller ids), besides y_ll
Use when: queries have several labels, so that labels say something about each other; it helps rare ones most.
          Losses that read the value of a target (bce, the weights of psl) see the share, others only that it is > 0.
Differs:  this is the exact co-occurrence of the training set. Graphs that random walks over the queries make, which
          also join labels that never occur together, are not built.
Paper:    Kharbanda et al., "Gandalf: Learning Label-label Correlations in Extreme Multi-label Classification via Label
          Features", KDD 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab.api import Dataset, Transform, option
from xmclab.data.sparse import canonical, narrow
from xmclab_systems.labels_as_queries import with_label_queries

PRODUCTS = 1 << 24  # pairs of labels counted at once, unless one label alone has more: bounds the memory


@dataclass
class Gandalf(Transform):
    """The labels as extra training queries, with themselves and with co-occurring labels as soft targets."""

    threshold: float = option(
        0.1, "smallest share of a label's queries that a co-occurring label must have", ge=0, le=1
    )
    most: int = option(30, "most co-occurring labels of a label", ge=0)

    def apply(self, data: Dataset) -> Dataset:
        return with_label_queries(data, co_occurrence(data.real.targets_NL, self.threshold, self.most))


def co_occurrence(targets_NL: sp.csr_array, threshold: float, most: int) -> sp.csr_array:
    """y_LL as the formula says; labels without a query have only themselves."""
    targets_NL = canonical(targets_NL)
    labels = targets_NL.shape[1]
    ones = np.ones(targets_NL.nnz, np.int32)
    true_NL = sp.csr_array((ones, targets_NL.indices, targets_NL.indptr), shape=targets_NL.shape)
    queries_LN = true_NL.T.tocsr()
    parts = [
        _strongest(start, sp.csr_array(queries_LN[start:stop] @ true_NL), threshold, most)
        for start, stop in _blocks(queries_LN, np.diff(true_NL.indptr))
    ]
    values, columns, lengths_L = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return narrow(values, columns, np.concatenate([[0], np.cumsum(lengths_L)]), (labels, labels))


def _blocks(queries_LN: sp.csr_array, labels_of_N: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """(start, stop) of labels whose co-occurrences are counted together."""
    work_E = labels_of_N[queries_LN.indices].astype(np.int64)
    done_L = np.concatenate([[0], np.cumsum(work_E)])[queries_LN.indptr]  # products before each label
    labels, start = queries_LN.shape[0], 0
    while start < labels:
        stop = int(np.searchsorted(done_L, done_L[start] + PRODUCTS, side="right")) - 1
        stop = min(max(stop, start + 1), labels)
        yield start, stop
        start = stop


def _strongest(
    start: int, counts_BL: sp.csr_array, threshold: float, most: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """(values, columns, entries of each row) of the labels from `start` on, from the counts of their pairs."""
    rows = counts_BL.shape[0]
    row_E = np.repeat(np.arange(rows), np.diff(counts_BL.indptr))
    column_E, count_E = counts_BL.indices.astype(np.int64), counts_BL.data
    own_E = column_E == row_E + start
    queries_B = np.zeros(rows)
    queries_B[row_E[own_E]] = count_E[own_E]
    share_E = count_E / queries_B[row_E]
    kept = np.flatnonzero(~own_E & (share_E >= threshold))
    order = kept[np.lexsort((column_E[kept], -share_E[kept], row_E[kept]))]
    first_B = np.searchsorted(row_E[order], np.arange(rows))
    order = order[np.arange(len(order)) - first_B[row_E[order]] < most]
    every_B = np.arange(rows)
    row_E = np.concatenate([row_E[order], every_B])
    column_E = np.concatenate([column_E[order], every_B + start])
    value_E = np.concatenate([share_E[order], np.ones(rows)]).astype(np.float32)
    sorted_E = np.lexsort((column_E, row_E))
    return value_E[sorted_E], column_E[sorted_E], np.bincount(row_E, minlength=rows)
