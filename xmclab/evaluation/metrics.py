"""Ranking metrics: P, PSP, nDCG, PSnDCG, R and PSR at any cut-off k.

Formula (h_ij = 1 where the j-th label of row i is true, w_l inverse propensity, P_i the true labels of row i,
d_j = 1 / log2(j + 1), D_ik = the sum of the first min(k, |P_i|) of the d_j; sums run over j <= k):

    P@k       mean_i  sum_j h_ij / k
    nDCG@k    mean_i  sum_j h_ij d_j / D_ik
    R@k       mean_i  sum_j h_ij / |P_i|
    PSP@k     sum_i   sum_j h_ij w_ij                 over the same for the best possible ranking
    PSnDCG@k  sum_i   sum_j h_ij w_ij d_j / D_ik      likewise
    PSR@k     sum_i   sum_j h_ij w_ij / |P_i|         likewise

A row without true labels counts 0. Propensities are in `data/propensity.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.data.propensity import LabelGroups
from xmclab.data.sparse import canonical
from xmclab.plan.csr import contains, row_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

KINDS = ("P", "PSP", "nDCG", "PSnDCG", "R", "PSR")
CHUNK = 1 << 17  # places of a ranking processed at once: bounds the memory, not the result


# Rankings


def ranking_from_scores(scores_NL: sp.csr_array, k: int) -> Ranking:
    """The k best of the stored scores of each row: higher score first, then smaller label id; -1 pads."""
    scores = sp.csr_array(scores_NL)
    rows = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    order = np.lexsort((scores.indices, -scores.data, rows))
    place = np.arange(len(rows)) - np.repeat(scores.indptr[:-1], np.diff(scores.indptr))
    kept = place < k
    ids_NK = np.full((scores.shape[0], k), -1, dtype=np.int64)
    scores_NK = np.full((scores.shape[0], k), -np.inf, dtype=np.float32)
    ids_NK[rows[kept], place[kept]] = scores.indices[order][kept]
    scores_NK[rows[kept], place[kept]] = scores.data[order][kept]
    return Ranking(ids_NK, scores_NK)


def drop_filtered(ranking: Ranking, filter_NL: sp.csr_array, k: int) -> Ranking:
    """The first k labels of each row that are not filtered, padded with -1.

    The result is complete when the ranking is at least `k + the largest number of filter pairs of a row` deep.
    """
    rows, depth = ranking.ids_NK.shape
    ids_NK = np.full((rows, k), -1, dtype=np.int64)
    scores_NK = np.full((rows, k), -np.inf, dtype=np.float32)
    filter_NL = canonical(filter_NL)
    for rows_Q in row_chunks(rows, depth):
        chunk = slice(rows_Q[0], rows_Q[-1] + 1)
        ids = ranking.ids_NK[chunk]
        keep = (ids >= 0) & ~contains(filter_NL, rows_Q, ids)
        first = np.argsort(~keep, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(keep, first, axis=1)
        ids_NK[chunk, :depth] = np.where(kept, np.take_along_axis(ids, first, axis=1), -1)
        scores_NK[chunk, :depth] = np.where(kept, np.take_along_axis(ranking.scores_NK[chunk], first, axis=1), -np.inf)
    return Ranking(ids_NK, scores_NK)


# Metrics


def evaluate(
    ranking: Ranking,
    truth_NL: sp.csr_array,
    inv_propensity_L: Floats,
    ks: Sequence[int] = (1, 3, 5),
    recall_ks: Sequence[int] = (10, 100),
) -> dict[str, float]:
    """All metrics in percent: `P@k`, `PSP@k`, `nDCG@k`, `PSnDCG@k` for `ks`, `R@k` and `PSR@k` for `recall_ks`.

    Cut-offs deeper than the ranking are omitted, unless the ranking has room for every label.
    """
    everything = LabelGroups(("all",), np.zeros(truth_NL.shape[1], dtype=np.int64))
    return contributions(ranking, truth_NL, inv_propensity_L, everything, ks, recall_ks)["all"]


def contributions(
    ranking: Ranking,
    truth_NL: sp.csr_array,
    inv_propensity_L: Floats,
    groups: LabelGroups,
    ks: Sequence[int] = (1, 3, 5),
    recall_ks: Sequence[int] = (10, 100),
) -> dict[str, dict[str, float]]:
    """What the labels of each group contribute to every metric of `evaluate`, by group name: they sum to the whole."""
    rows, labels = truth_NL.shape
    wanted = metrics_of(ranking.ids_NK.shape[1], labels, ks, recall_ks)
    cutoffs = sorted({k for _, k in wanted.values()})
    if not cutoffs or not rows:
        return {name: {} for name in groups.names}

    truth_NL = canonical(truth_NL)
    # Rows with the same number of true labels share their normalisers, so only sums over such rows are kept.
    sizes_N = np.diff(truth_NL.indptr)
    occurs = np.bincount(sizes_N) > 0
    sizes_S, kind_N = np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[sizes_N]
    group_L = groups.group_L.astype(np.int16)  # read at random: a small type stays in the cache
    shape = len(groups.names), len(sizes_S), cutoffs[-1]
    hits_GSK, gains_GSK, best_SK = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape[1:])
    for rows_Q in row_chunks(rows, cutoffs[-1]):
        _add_rows(rows_Q, ranking, truth_NL, inv_propensity_L, kind_N, group_L, hits_GSK, gains_GSK, best_SK)

    values: dict[str, dict[str, float]] = {}
    for name, hits_SK, gains_SK in zip(groups.names, hits_GSK, gains_GSK, strict=True):
        found = _percentages(hits_SK, gains_SK, best_SK, sizes_S, rows)
        values[name] = {metric: float(found[kind][k - 1]) for metric, (kind, k) in wanted.items()}
    return values


def metrics_of(
    depth: int, labels: int, ks: Sequence[int] = (1, 3, 5), recall_ks: Sequence[int] = (10, 100)
) -> dict[str, tuple[str, int]]:
    """(kind, cut-off) by name of the metrics that a ranking of this depth has; see `evaluate`."""
    chosen = ((kind, k) for kinds, some in ((KINDS[:4], ks), (KINDS[4:], recall_ks)) for kind in kinds for k in some)
    return {f"{kind}@{k}": (kind, k) for kind, k in chosen if k <= depth or depth >= labels}


def _add_rows(
    rows_Q: Ids,
    ranking: Ranking,
    truth_NL: sp.csr_array,
    inv_propensity_L: Floats,
    kind_N: Ids,
    group_L: NDArray[np.int16],
    hits_GSK: Ids,
    gains_GSK: Floats,
    best_SK: Floats,
) -> None:
    """Add to each place the hits and their weights in these rows, and the weights of the best ranking.

    Adds one number at a time in row order, so that chunks do not change a bit.
    """
    width = best_SK.shape[1]
    row_H, place_H, label_H = hits(rows_Q, ranking, truth_NL, width)
    cells_H = np.ravel_multi_index((group_L[label_H], kind_N[rows_Q[row_H]], place_H), hits_GSK.shape)
    np.add.at(hits_GSK.reshape(-1), cells_H, 1)
    np.add.at(gains_GSK.reshape(-1), cells_H, inv_propensity_L[label_H])
    row_E, place_E, weight_E = best_weights(rows_Q, truth_NL, inv_propensity_L, width)
    np.add.at(best_SK.reshape(-1), kind_N[rows_Q[row_E]] * width + place_E, weight_E)


def hits(rows_Q: Ids, ranking: Ranking, truth_NL: sp.csr_array, width: int) -> tuple[Ids, Ids, Ids]:
    """(row in Q, place, label) of every true label among the first `width` of consecutive rows."""
    ids_QK = ranking.ids_NK[rows_Q[0] : rows_Q[-1] + 1, :width]
    row_H, place_H = np.nonzero(contains(truth_NL, rows_Q, ids_QK))
    return row_H, place_H, ids_QK[row_H, place_H]


def best_weights(rows_Q: Ids, truth_NL: sp.csr_array, weights_L: Floats, width: int) -> tuple[Ids, Ids, Floats]:
    """(row in Q, place, weight) of the best possible ranking of consecutive rows: true labels, the heaviest first."""
    true = row_pairs(truth_NL, rows_Q)
    weight_E = weights_L[true.column_E]
    weight_E = weight_E[np.lexsort((-weight_E, true.row_E))]
    place_E = np.arange(len(weight_E)) - (truth_NL.indptr[rows_Q] - truth_NL.indptr[rows_Q[0]])[true.row_E]
    kept_E = place_E < width
    return true.row_E[kept_E], place_E[kept_E], weight_E[kept_E]


# Formulas


def curves(gains_RK: NDArray[np.float64 | np.int64], sizes_R: Ids) -> dict[str, Floats]:
    """[R, K] of nDCG, R and k times P at every k, from what each place gains in rows with this many true labels."""
    places_K = np.arange(gains_RK.shape[1])
    discount_K = 1 / np.log2(places_K + 2)
    sizes_R1 = np.maximum(sizes_R, 1)[:, None]  # rows without truth gain nothing: 0 / 1
    ideal_RK = np.cumsum(discount_K)[np.minimum(sizes_R1 - 1, places_K)]
    found_RK = np.cumsum(gains_RK, axis=1)
    return {
        "P": found_RK,
        "R": found_RK / sizes_R1,
        "nDCG": np.cumsum(gains_RK * discount_K, axis=1) / ideal_RK,
    }


def percent(found_M: NDArray[Any], best_M: NDArray[Any]) -> Floats:
    """The share of the best possible that was found; 0 where nothing could be."""
    return np.asarray(100 * found_M / np.where(best_M > 0, best_M, 1.0))


def _percentages(hits_SK: Ids, gains_SK: Floats, best_SK: Floats, sizes_S: Ids, rows: int) -> dict[str, Floats]:
    """[K] percentages by kind, from what the rows of each size gain at each place."""
    found, weighted, best = (
        {kind: curve_SK.sum(axis=0) for kind, curve_SK in curves(some_SK, sizes_S).items()}
        for some_SK in (hits_SK, gains_SK, best_SK)
    )
    values = {f"PS{kind}": percent(weighted[kind], best[kind]) for kind in weighted}
    for kind, found_K in found.items():
        values[kind] = percent(found_K, rows * (np.arange(len(found_K)) + 1 if kind == "P" else np.ones_like(found_K)))
    return values


# Sparse helpers


def row_chunks(rows: int, places: int) -> Iterator[Ids]:
    """Row numbers in chunks of `CHUNK` places."""
    size = max(1, CHUNK // max(places, 1))
    return (np.arange(start, min(start + size, rows)) for start in range(0, rows, size))
