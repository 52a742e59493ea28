"""The label pool of a batch: sampled positives, mined negatives, and which of all those pairs are true.

Where:    P_i positives of query i; the pool unites, over the batch, at most beta of P_i with the mined negatives
Law:      every pair of P_i inside the pool is a positive, whoever brought the label, so no true positive is a negative
Paper:    Kharbanda et al., UniDEC (WWW 2025), pick-some-labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmclab.api import Batch
from xmclab.kernels.dispatch import accelerated
from xmclab.plan.csr import Pairs, find, row_pairs, sorted_unique
from xmclab.plan.draws import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]


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
    if all_labels:
        compiled, labels_P = False, np.arange(targets_NL.shape[1])
    else:
        compiled = accelerated(targets_NL.nnz)
        sampled = sample_positives(rows_Q, targets_NL, beta, rng, compiled)
        if cap == 0:
            labels_P = union(sampled, mined_QE, compiled)
        else:
            labels_P = fill(cap, _in_fill_order(sampled, mined_QE, rows_Q, targets_NL), compiled)
    matched = match(rows_Q, labels_P, targets_NL, filter_NL, compiled)
    return Batch(
        rows_Q=rows_Q[matched.kept_Q],
        labels_P=labels_P,
        positives=(matched.row_E, matched.column_E, matched.value_E),
        ignored=(matched.ignored_row_I, matched.ignored_column_I),
        dropped=int(len(rows_Q) - np.count_nonzero(matched.kept_Q)),
        missing=int(np.count_nonzero(mined_QE < 0)),
    )


def sample_positives(rows_Q: Ids, targets_NL: sp.csr_array, beta: int, rng: np.random.Generator, compiled: bool) -> Ids:
    """At most beta labels of each row, row after row."""
    if compiled:
        from xmclab.kernels import pool as loops

        lengths_Q = loops.row_lengths(rows_Q, targets_NL.indptr, targets_NL.indices)
        drawn_Qn = distinct(lengths_Q, min(beta, int(lengths_Q.max(initial=0))), rng, compiled)
        return loops.entries(rows_Q, drawn_Qn, targets_NL.indptr, targets_NL.indices)
    starts_Q = targets_NL.indptr[rows_Q].astype(np.int64)
    lengths_Q = targets_NL.indptr[rows_Q + 1] - starts_Q
    drawn_Qn = distinct(lengths_Q, min(beta, int(lengths_Q.max(initial=0))), rng, compiled)
    entries_Qn = starts_Q[:, None] + drawn_Qn
    return np.asarray(targets_NL.indices[entries_Qn[drawn_Qn >= 0]], dtype=np.int64)


def union(sampled: Ids, mined_QE: Ids, compiled: bool) -> Ids:
    """The distinct labels of both, ascending, without -1."""
    if compiled:
        from xmclab.kernels import pool as loops

        return loops.union(sampled, mined_QE)
    return sorted_unique(np.concatenate([sampled, mined_QE[mined_QE >= 0]]))


def _in_fill_order(sampled: Ids, mined_QE: Ids, rows_Q: Ids, targets_NL: sp.csr_array) -> Iterator[Ids]:
    """What fills a capped pool, a label once per query that brings it; the last is seldom asked for."""
    yield sampled
    yield mined_QE[mined_QE >= 0]
    yield row_pairs(targets_NL, rows_Q).column_E


def fill(cap: int, stages: Iterable[Ids], compiled: bool) -> Ids:
    """At most `cap` distinct labels, ascending: stage after stage, within one the most frequent first."""
    labels_P = np.empty(0, dtype=np.int64)
    for brought in stages:
        labels, counts = tally(brought, labels_P, compiled)
        room = cap - len(labels_P)
        labels_P = np.concatenate([labels_P, most_frequent(labels, counts, room) if len(labels) > room else labels])
        if len(labels_P) == cap:
            break
    return np.sort(labels_P)


def tally(brought: Ids, taken: Ids, compiled: bool) -> tuple[Ids, Ids]:
    """(the distinct labels of `brought` that are not in `taken`, in any order; how often each is listed)."""
    if compiled:
        from xmclab.kernels import pool as loops

        return loops.tally(brought, taken)
    return np.unique(brought[~np.isin(brought, taken)], return_counts=True)


def most_frequent(labels: Ids, counts: Ids, n: int) -> Ids:
    """n of these distinct labels: those with the largest counts, then the smaller ids."""
    stride = labels.max() + 1
    return np.asarray(np.sort((counts.max() - counts) * stride + labels)[:n] % stride)


class Matched(NamedTuple):
    """What is known of the pairs of a batch; rows are positions among the queries that stay."""

    kept_Q: NDArray[np.bool_]  # has a positive in the pool
    row_E: Ids
    column_E: Ids
    value_E: NDArray[np.float32]
    ignored_row_I: Ids
    ignored_column_I: Ids


def match(rows_Q: Ids, labels_P: Ids, targets_NL: sp.csr_array, filter_NL: sp.csr_array, compiled: bool) -> Matched:
    """The true and the unknown pairs inside the pool, in the order of the queries and then of the matrices."""
    if compiled:
        from xmclab.kernels import pool as loops

        targets, filters = (targets_NL.indptr, targets_NL.indices), (filter_NL.indptr, filter_NL.indices)
        return Matched(*loops.match(rows_Q, labels_P, *targets, targets_NL.data, *filters))
    positives = _inside(row_pairs(targets_NL, rows_Q), labels_P)
    kept_Q = np.bincount(positives.row_E, minlength=len(rows_Q)) > 0
    position_Q = np.cumsum(kept_Q) - 1
    unknown = _inside(row_pairs(filter_NL, rows_Q), labels_P)
    cells_true, cells_unknown = (pairs.row_E * len(labels_P) + pairs.column_E for pairs in (positives, unknown))
    unknown = unknown.where(kept_Q[unknown.row_E] & ~np.isin(cells_unknown, cells_true))
    return Matched(
        kept_Q,
        position_Q[positives.row_E],
        positives.column_E,
        positives.value_E,
        position_Q[unknown.row_E],
        unknown.column_E,
    )


def _inside(pairs: Pairs, labels_P: NDArray[np.int64]) -> Pairs:
    """The pairs whose label is in the pool, with its place there as their column."""
    place_E, found_E = find(labels_P, pairs.column_E)
    return Pairs(pairs.row_E, place_E, pairs.value_E).where(found_E)
