"""Is a difference real? A paired bootstrap over the test queries and the seeds.

Two rows are compared on the same draws of test queries, which cancels how hard the queries are. A metric of a row is
the mean over its seeds; those are drawn with replacement too, the same for rows that have the same ones, since a seed
gives them the same batches and the same start. So an interval covers what other test queries and other seeds would
have changed, the latter as far as a few seeds can tell; a single seed tells nothing.

Formula (found_sg, best_g: sums of a metric over the queries of group g with seed s; w ~ Multinomial of a draw, S its
seeds; e_g = ±1 at random, f_g = mean_s found_sg):
    m(w,S) = 100 · mean_{s in S} ( sum_g w_g found_sg / sum_g w_g best_g )
    p_b   = min(1, 2 · min(#{m_a <= m_b} + 1, #{m_a >= m_b} + 1) / (draws + 1)), over the draws of w, S_a and S_b
    p_f   = (#{e: |sum_g e_g (f_ag - f_bg)| >= |sum_g (f_ag - f_bg)|} + 1) / (draws + 1)
    p     = max(p_b, p_f)
The bootstrap alone is too sure where few queries differ: four of four in favour are p_b = 0.04. Exchanging the rows on
random queries (p_f) is exact there: 0.125.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xmclab.evaluation.bootstrap import middle, redrawn
from xmclab.evaluation.metrics import percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DRAWS = 2000
CHUNK = 64  # exchanges processed at once


@dataclass(frozen=True)
class Points:
    """What each group of test queries contributes to the metrics of one search of one run."""

    metrics: tuple[str, ...]
    found_GM: Floats
    best_GM: Floats

    def of(self, metrics: Sequence[str]) -> Points:
        """These metrics alone."""
        columns = [self.metrics.index(metric) for metric in metrics]
        return Points(tuple(metrics), self.found_GM[:, columns], self.best_GM[:, columns])


@dataclass(frozen=True)
class Difference:
    """A row less another, in one metric, in percentage points."""

    value: float
    low: float  # of the 95 % interval
    high: float
    p: float


def drawn(
    rows: Mapping[str, Sequence[Points]], draws: int = DRAWS, seed: int = 0, same_seeds: bool = False
) -> dict[str, Floats]:
    """[draws + 1, M] metrics of each row on the same draws of test queries; the first entry is on all, with all seeds.

    Args:
        rows: by name, the points of every seed, of the same metrics and the same test queries.
        same_seeds: the rows have the same seeds in the same order, so that they are drawn once for all of them.
    """
    every = [points for some in rows.values() for points in some]
    if len({(points.metrics, points.found_GM.shape) for points in every}) != 1:
        raise ValueError("rows were not measured on the same test queries")
    width = every[0].found_GM.shape[1]
    found_GX = np.concatenate([points.found_GM for points in every], axis=1)
    best_GX = np.concatenate([points.best_GM for points in every], axis=1)
    values_BX = np.concatenate(
        [
            percent(found_GX.sum(axis=0), best_GX.sum(axis=0))[None],
            redrawn(found_GX, best_GX, draws, np.random.default_rng(seed)),
        ]
    )
    ends = np.cumsum([len(some) for some in rows.values()])
    values_BSM = values_BX.reshape(draws + 1, len(every), width)
    metrics: dict[str, Floats] = {}
    for row, ((name, some), end) in enumerate(zip(rows.items(), ends, strict=True)):
        of_row_BSM = values_BSM[:, end - len(some) : end]
        seeds_BS = np.random.default_rng([seed, 0 if same_seeds else row]).integers(len(some), size=(draws, len(some)))
        drawn_BSM = np.take_along_axis(of_row_BSM[1:], seeds_BS[:, :, None], axis=1)
        metrics[name] = np.concatenate([of_row_BSM[:1].mean(axis=1), drawn_BSM.mean(axis=1)])
    return metrics


def flipped(rows: Mapping[str, Sequence[Points]], draws: int = DRAWS, seed: int = 0) -> dict[tuple[str, str], Floats]:
    """[M] p-values of every two rows if it did not matter which of them answered a query."""
    pairs = list(itertools.combinations(rows, 2))
    found = {name: np.mean([points.found_GM for points in some], axis=0) for name, some in rows.items()}
    apart_GX = np.concatenate([found[a] - found[b] for a, b in pairs], axis=1)
    limit_X = np.abs(apart_GX.sum(axis=0)) * (1 - 1e-9)  # as far as this one, in any order of the sum
    rng = np.random.default_rng(seed)
    as_far_X = np.zeros(apart_GX.shape[1])
    for start in range(0, draws, CHUNK):
        signs_BG = 2.0 * rng.integers(0, 2, size=(min(CHUNK, draws - start), len(apart_GX)), dtype=np.int8) - 1
        as_far_X += (np.abs(signs_BG @ apart_GX) >= limit_X).sum(axis=0)
    p_PM = ((as_far_X + 1) / (draws + 1)).reshape(len(pairs), -1)
    return dict(zip(pairs, p_PM, strict=True))


def difference(a_B: Floats, b_B: Floats, p_flipped: float) -> Difference:
    """The difference of two rows, from their values on the same draws (the first entry: on all queries)."""
    value = a_B[0] - b_B[0]
    drawn_B = a_B[1:] - b_B[1:]
    low, high = middle(drawn_B)
    smaller = min(np.count_nonzero(drawn_B <= 0), np.count_nonzero(drawn_B >= 0))
    p = max(float(p_flipped), min(1.0, 2 * (smaller + 1) / (len(drawn_B) + 1)))
    return Difference(float(value), float(low), float(high), p)


def differences(
    points: Mapping[str, Sequence[Points]], same_seeds: bool = False, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Every pair of rows that have points, in every metric, on the same draws of test queries."""
    rows = {name: some for name, some in points.items() if some}
    shapes = {(each.metrics, each.found_GM.shape) for some in rows.values() for each in some}
    if len(rows) < 2 or len(shapes) != 1:
        return
    ((metrics, _),) = shapes
    values, p_values = drawn(rows, seed=seed, same_seeds=same_seeds), flipped(rows, seed=seed)
    for index, metric in enumerate(metrics):
        for a, b in itertools.combinations(rows, 2):
            found = difference(values[a][:, index], values[b][:, index], p_values[a, b][index])
            yield {"metric": metric, "a": a, "b": b, **asdict(found)}


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for multiple comparisons (Holm 1979), in the same order."""
    order = np.argsort(p_values, kind="stable")
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
