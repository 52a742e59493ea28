"""The label pool of a batch: sampled positives, mined negatives, and which of all those pairs are true.

Where:    P_i positives of query i; the pool unites, over the batch, at most beta of P_i with the mined negatives
Law:      every pair of P_i inside the pool is a positive, whichever query brought the label: none acts as a negative
Paper:    Kharbanda et al., UniDEC (WWW 2025), pick-some-labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Batch
from xmclab.plan.csr import Pairs, find, row_pairs, sorted_unique
from xmclab.plan.draws import distinct, repeated

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
    replacement: bool = False,
    gap: int = 0,
) -> Batch:
    """Choose the candidate labels of a batch and list its true and its unknown pairs; pure in `rng`.

    Args:
        rows_Q: query ids of the batch.
        targets_NL: relevance > 0 of each true pair.
        filter_NL: pairs that must not act as negatives.
        mined_QE: mined negatives of each query, -1 where there are fewer; [Q, 0] for none.
        beta: positives sampled per query; without replacement, all of them where a query has fewer.
        cap: maximum labels of the pool, 0 for no limit. The pool is then filled up to it: sampled positives
            first, mined negatives next, the queries' further positives last; within each of the three, the label that
            was brought most often comes first, then the smaller id.
        all_labels: the pool is every label; nothing is sampled or capped.
        replacement: sample positives with replacement: a query may draw one several times, and so fewer distinct ones.
        gap: mined negatives, and then further positives, join a capped pool only if it has room for more than this.

    Returns:
        The batch, without the queries that have no positive in the pool (`dropped` counts them).
    """
    true, drawn_E = row_pairs(targets_NL, rows_Q), None
    if all_labels:
        labels_P = np.arange(targets_NL.shape[1])
    else:
        if replacement:
            entries = draw_repeatedly(rows_Q, targets_NL, beta, rng)
            drawn_E = np.zeros(len(true.column_E), dtype=np.bool_)
            drawn_E[entries] = True
        else:
            drawn_E = draw_positives(rows_Q, targets_NL, beta, rng)
            entries = np.flatnonzero(drawn_E)
        sampled, mined = true.column_E[entries], mined_QE[mined_QE >= 0]
        if cap == 0:
            labels_P = sorted_unique(np.concatenate([sampled, mined]))
        else:
            labels_P = fill(cap, (sampled, mined, true.column_E), gap)

    positives, inside = _inside(true, labels_P)
    unknown, _ = _inside(row_pairs(filter_NL, rows_Q), labels_P)
    kept_Q = np.bincount(positives.row_E, minlength=len(rows_Q)) > 0
    cells_true, cells_unknown = (pairs.row_E * len(labels_P) + pairs.column_E for pairs in (positives, unknown))
    unknown = unknown.where(kept_Q[unknown.row_E] & ~np.isin(cells_unknown, cells_true))
    position_Q = np.cumsum(kept_Q) - 1
    return Batch(
        rows_Q=rows_Q[kept_Q],
        labels_P=labels_P,
        positives=(position_Q[positives.row_E], positives.column_E, positives.value_E),
        ignored=(position_Q[unknown.row_E], unknown.column_E),
        drawn_E=None if drawn_E is None else drawn_E[inside],
        dropped=int(len(rows_Q) - np.count_nonzero(kept_Q)),
        missing=int(np.count_nonzero(mined_QE < 0)),
    )


def complete_by_band(batch: Batch, targets_NL: sp.csr_array, bands: Sequence[str], band_L: Ids) -> dict[str, float]:
    """By band of labels: the share of the queries with such a label whose positives are all in the pool."""
    true = row_pairs(targets_NL, batch.rows_Q)
    found_Q = np.bincount(batch.positives[0], minlength=len(batch.rows_Q))
    complete_Q = found_Q == np.bincount(true.row_E, minlength=len(batch.rows_Q))
    rows = {name: np.unique(true.row_E[band_L[true.column_E] == at]) for at, name in enumerate(bands)}
    return {name: float(complete_Q[some].mean()) for name, some in rows.items() if len(some)}


def draw_positives(rows_Q: Ids, targets_NL: sp.csr_array, beta: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw at most beta positives of each row: whether each of them all, row after row, is one."""
    lengths_Q = targets_NL.indptr[rows_Q + 1].astype(np.int64) - targets_NL.indptr[rows_Q]
    place_Qn = distinct(lengths_Q, min(beta, int(lengths_Q.max(initial=0))), rng)
    ends_Q = np.cumsum(lengths_Q)
    drawn_E = np.zeros(lengths_Q.sum(), dtype=np.bool_)
    drawn_E[((ends_Q - lengths_Q)[:, None] + place_Qn)[place_Qn >= 0]] = True
    return drawn_E


def draw_repeatedly(rows_Q: Ids, targets_NL: sp.csr_array, beta: int, rng: np.random.Generator) -> Ids:
    """Draw beta positives of each row that has any, with replacement: which of them all, row after row, each is."""
    lengths_Q = targets_NL.indptr[rows_Q + 1].astype(np.int64) - targets_NL.indptr[rows_Q]
    place_Qn = repeated(lengths_Q, beta, rng)
    return np.asarray(((np.cumsum(lengths_Q) - lengths_Q)[:, None] + place_Qn)[place_Qn >= 0])


def fill(cap: int, stages: Iterable[Ids], gap: int = 0) -> Ids:
    """At most `cap` distinct labels, ascending: stage after stage, within one the most frequent first.

    A stage names a label once for every time that it is brought. Later stages need room for more than `gap` labels.
    """
    labels_P = np.empty(0, dtype=np.int64)
    for number, brought in enumerate(stages):
        room = cap - len(labels_P)
        if room == 0 or (number and room <= gap):
            break
        labels, counts = np.unique(brought[~np.isin(brought, labels_P)], return_counts=True)
        labels_P = np.concatenate([labels_P, most_frequent(labels, counts, room) if len(labels) > room else labels])
    return np.sort(labels_P)


def most_frequent(labels: Ids, counts: Ids, n: int) -> Ids:
    """n of these distinct labels: those with the largest counts, then the smaller ids."""
    stride = labels.max() + 1
    return np.asarray(np.sort((counts.max() - counts) * stride + labels)[:n] % stride)


def _inside(pairs: Pairs, labels_P: Ids) -> tuple[Pairs, Ids]:
    """The pairs whose label is in the pool, with its place there as their column, and where they were in the list."""
    place_E, found_E = find(labels_P, pairs.column_E)
    inside = np.flatnonzero(found_E)  # several times faster to index with than a mask
    return Pairs(pairs.row_E[inside], place_E[inside], pairs.value_E[inside]), inside
