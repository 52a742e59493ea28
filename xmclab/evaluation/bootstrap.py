"""How far metrics would move with other test queries: intervals by drawing queries with replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.data.sparse import canonical
from xmclab.evaluation.metrics import KINDS, row_chunks
from xmclab.plan.csr import contains, row_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

GROUPS = 20_000  # drawn at once: rows beyond that share a group at random, which widens no interval
DRAWS_AT_ONCE = 64  # one product for many draws: alone, each would read all sums again
LEVEL = 0.95


def intervals(
    ranking: Ranking,
    truth_NL: sp.csr_array,
    inv_propensity_L: Floats,
    metrics: Sequence[str],
    draws: int,
    rng: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """The middle 95 % of each metric (`P@1`, ...), in percent, over draws of as many queries with replacement."""
    found_GM, best_GM = group_sums(ranking, truth_NL, inv_propensity_L, metrics, rng)
    low_M, high_M = middle(redrawn(found_GM, best_GM, draws, rng))
    return {name: (float(low), float(high)) for name, low, high in zip(metrics, low_M, high_M, strict=True)}


def redrawn(found_GM: Floats, best_GM: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """[draws, M] metrics in percent, each on as many groups of queries drawn with replacement."""
    groups = len(found_GM)
    values_BM = np.empty((draws, found_GM.shape[1]))
    for start in range(0, draws, DRAWS_AT_ONCE):
        count = min(DRAWS_AT_ONCE, draws - start)
        drawn_BG = [np.bincount(rng.integers(groups, size=groups), minlength=groups) for _ in range(count)]
        times_BG = np.array(drawn_BG, dtype=np.float64)
        values_BM[start : start + count] = percent(times_BG @ found_GM, times_BG @ best_GM)
    return values_BM


def percent(found_M: Floats, best_M: Floats) -> Floats:
    """What was found of the best possible; 0 where nothing could be."""
    return 100 * found_M / np.where(best_M > 0, best_M, 1.0)


def middle(values_B: Floats) -> Floats:
    """Where the middle 95 % of the draws begin and end."""
    return np.quantile(values_B, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def group_sums(
    ranking: Ranking,
    truth_NL: sp.csr_array,
    inv_propensity_L: Floats,
    metrics: Sequence[str],
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """(found, best possible) [G, M] of each metric, over groups of rows: a metric is the ratio of the sums over all."""
    rows = truth_NL.shape[0]
    groups = min(rows, GROUPS)
    group_N = rng.permutation(rows) % groups
    cuts = [(kind, int(k)) for kind, k in (name.split("@") for name in metrics)]
    assert all(kind in KINDS for kind, _ in cuts)
    truth_NL = canonical(truth_NL)
    sums = np.zeros((2, groups, len(cuts)))
    for rows_Q in row_chunks(rows, max(k for _, k in cuts)):
        for total_GM, part_QM in zip(sums, row_terms(rows_Q, ranking, truth_NL, inv_propensity_L, cuts), strict=True):
            np.add.at(total_GM, group_N[rows_Q], part_QM)
    return sums[0], sums[1]


def row_terms(
    rows_Q: Ids, ranking: Ranking, truth_NL: sp.csr_array, inv_propensity_L: Floats, cuts: Sequence[tuple[str, int]]
) -> tuple[Floats, Floats]:
    """(found, best possible) [Q, M] of each row, as the formulas of `metrics` have them."""
    width = max(k for _, k in cuts)
    ids_QK = ranking.ids_NK[rows_Q[0] : rows_Q[-1] + 1, :width]
    hits_QK = np.zeros((len(rows_Q), width))
    hits_QK[:, : ids_QK.shape[1]] = contains(truth_NL, rows_Q, ids_QK)
    weights_QK = np.zeros((len(rows_Q), width))
    weights_QK[hits_QK > 0] = inv_propensity_L[ids_QK[hits_QK[:, : ids_QK.shape[1]] > 0]]
    sizes_Q1 = np.maximum(np.diff(truth_NL.indptr)[rows_Q], 1)[:, None]
    found, found_weighted, best_weighted = (
        _curves(gains_QK, sizes_Q1)
        for gains_QK in (hits_QK, weights_QK, _largest_weights(rows_Q, truth_NL, inv_propensity_L, width))
    )
    found_QM, best_QM = np.empty((2, len(rows_Q), len(cuts)))
    for column, (kind, k) in enumerate(cuts):
        plain = kind.removeprefix("PS")
        found_QM[:, column] = (found if kind == plain else found_weighted)[plain][:, k - 1]
        best_QM[:, column] = 1.0 if kind == plain else best_weighted[plain][:, k - 1]
    return found_QM, best_QM


def _curves(gains_QK: Floats, sizes_Q1: Ids) -> dict[str, Floats]:
    """[Q, K] of P, R and nDCG at every k, from what each place gains."""
    places_K = np.arange(1, gains_QK.shape[1] + 1)
    discount_K = 1 / np.log2(places_K + 1)
    ideal_QK = np.cumsum(discount_K)[np.minimum(sizes_Q1, places_K) - 1]
    sums_QK = np.cumsum(gains_QK, axis=1)
    return {
        "P": sums_QK / places_K,
        "R": sums_QK / sizes_Q1,
        "nDCG": np.cumsum(gains_QK * discount_K, axis=1) / ideal_QK,
    }


def _largest_weights(rows_Q: Ids, truth_NL: sp.csr_array, inv_propensity_L: Floats, width: int) -> Floats:
    """[Q, K] the largest weights of each row's true labels, descending; 0 beyond the last."""
    true = row_pairs(truth_NL, rows_Q)
    weight_E = inv_propensity_L[true.column_E]
    weight_E = weight_E[np.lexsort((-weight_E, true.row_E))]
    place_E = np.arange(len(weight_E)) - (truth_NL.indptr[rows_Q] - truth_NL.indptr[rows_Q[0]])[true.row_E]
    kept_E = place_E < width
    largest_QK = np.zeros((len(rows_Q), width))
    largest_QK[true.row_E[kept_E], place_E[kept_E]] = weight_E[kept_E]
    return largest_QK
