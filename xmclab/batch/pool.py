"""The label pool of a batch: sampled positives, mined negatives, and which of all those pairs are true.

Where:    P_i positives of query i; the pool unites, over the batch, at most beta of P_i with the mined negatives
Law:      every pair of P_i inside the pool is a positive, whoever brought the label, so no true positive is a negative
Paper:    Kharbanda et al., UniDEC (WWW 2025), pick-some-labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Batch
from xmclab.batch.csr import Pairs, find, row_pairs, sorted_unique

if TYPE_CHECKING:
    from numpy.typing import NDArray


def build_batch(
    rows_Q: NDArray[np.int64],
    targets_NL: sp.csr_array,
    filter_NL: sp.csr_array,
    mined_QE: NDArray[np.int64],
    beta: int,
    cap: int,
    rng: np.random.Generator,
    all_labels: bool = False,
) -> Batch:
    """Choose the candidate labels of a batch and list its true and its unknown pairs; pure in `rng`.

    Args:
        rows_Q: query ids of the batch.
        targets_NL: relevance > 0 of each true pair.
        filter_NL: pairs that must not act as negatives.
        mined_QE: mined negatives of each query, -1 where there are fewer; [Q, 0] for none.
        beta: positives sampled per query, without replacement; all of them where a query has fewer.
        cap: labels of the pool at the most, 0 for no limit. The pool is then filled up to it: sampled positives
            first, mined negatives next, the queries' further positives last; within each of the three, the label that
            most queries brought comes first, then the smaller id.
        all_labels: the pool is every label; nothing is sampled or capped.

    Returns:
        The batch, without the queries that have no positive in the pool (`dropped` counts them).
    """
    true = row_pairs(targets_NL, rows_Q)
    if all_labels:
        labels_P = np.arange(targets_NL.shape[1])
    else:
        sampled = true.column_E[_at_most(beta, true.row_E, rng)]
        labels_P = _pool(sampled, mined_QE[mined_QE >= 0], true.column_E, cap)
    positives = _inside(true, labels_P)
    kept_Q = np.bincount(positives.row_E, minlength=len(rows_Q)) > 0
    position_Q = np.cumsum(kept_Q) - 1  # of a query among those that stay

    unknown = _inside(row_pairs(filter_NL, rows_Q), labels_P)
    cells_true, cells_unknown = (pairs.row_E * len(labels_P) + pairs.column_E for pairs in (positives, unknown))
    unknown = unknown.where(kept_Q[unknown.row_E] & ~np.isin(cells_unknown, cells_true, assume_unique=True))
    return Batch(
        rows_Q=rows_Q[kept_Q],
        labels_P=labels_P,
        positives=(position_Q[positives.row_E], positives.column_E, positives.value_E),
        ignored=(position_Q[unknown.row_E], unknown.column_E),
        dropped=int(len(rows_Q) - kept_Q.sum()),
        missing=int((mined_QE < 0).sum()),
    )


def _at_most(n: int, row_E: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Entries that stay when each row keeps n of its own at random, or all if it has fewer."""
    # A float32 below 1 stays below 1 when a row number is added in float64, so rows cannot mix.
    shuffled_E = np.argsort(row_E + rng.random(len(row_E), dtype=np.float32).astype(np.float64), kind="stable")
    lengths = np.bincount(row_E)
    starts = np.cumsum(lengths) - lengths
    return shuffled_E[np.arange(len(row_E)) - starts[row_E] < n]


def _pool(sampled: NDArray[np.int64], mined: NDArray[np.int64], true: NDArray[np.int64], cap: int) -> NDArray[np.int64]:
    """Unique labels, ascending. Each argument lists a label once per query that brings it."""
    if cap == 0:
        return sorted_unique(np.concatenate([sampled, mined]))
    labels_P = np.empty(0, dtype=np.int64)
    for brought in (sampled, mined, true):
        further = brought[~np.isin(brought, labels_P)]
        labels_P = np.concatenate([labels_P, _most_frequent(further, cap - len(labels_P))])
    return np.sort(labels_P)


def _most_frequent(labels: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """At most n distinct labels, those listed most often first, then the smaller id."""
    unique, counts = np.unique(labels, return_counts=True)
    return unique[np.argsort(-counts, kind="stable")[:n]]


def _inside(pairs: Pairs, labels_P: NDArray[np.int64]) -> Pairs:
    """The pairs whose label is in the pool, with its place there as their column."""
    place_E, found_E = find(labels_P, pairs.column_E)
    return Pairs(pairs.row_E, place_E, pairs.value_E).where(found_E)
