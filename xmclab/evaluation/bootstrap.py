"""Bootstrap intervals of metrics: how far they would move with other test queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.data.sparse import canonical
from xmclab.evaluation.metrics import KINDS, best_weights, curves, hits, percent, row_chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

GROUPS = 20_000  # most groups to draw from: more rows share groups at random, which does not widen intervals
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
    """(found, best possible) [Q, M] of each row: what the curves of `metrics` are at the cuts."""
    width, sizes_Q = max(k for _, k in cuts), np.diff(truth_NL.indptr)[rows_Q]
    hits_QK, gains_QK, best_QK = np.zeros((3, len(rows_Q), width))
    row_H, place_H, label_H = hits(rows_Q, ranking, truth_NL, width)
    hits_QK[row_H, place_H], gains_QK[row_H, place_H] = 1, inv_propensity_L[label_H]
    row_E, place_E, weight_E = best_weights(rows_Q, truth_NL, inv_propensity_L, width)
    best_QK[row_E, place_E] = weight_E
    found, weighted, best = (curves(some_QK, sizes_Q) for some_QK in (hits_QK, gains_QK, best_QK))
    found_QM, best_QM = np.ones((2, len(rows_Q), len(cuts)))
    for column, (kind, k) in enumerate(cuts):
        plain = kind.removeprefix("PS")
        share = k if plain == "P" else 1
        found_QM[:, column] = (found if kind == plain else weighted)[plain][:, k - 1] / share
        if kind != plain:
            best_QM[:, column] = best[plain][:, k - 1] / share
    return found_QM, best_QM
