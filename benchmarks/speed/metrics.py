"""Goal 10: six metrics at every cut-off up to K, at the size of LF-AmazonTitles-131K (random data)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from harness import Row, interleaved, peak_growth
from numpy.typing import NDArray

from xmclab.api import Ranking
from xmclab.evaluation.metrics import KINDS, evaluate

POINTS, LABELS, PER_POINT = 135_000, 131_000, 2.3
MEBIBYTE = 1 << 20
Data = tuple[Ranking, sp.csr_array, NDArray[np.float64]]


def inputs(k: int) -> Data:
    """A ranking that finds most of the true labels, the truth, and weights."""
    rng = np.random.default_rng(0)
    lengths_N = rng.poisson(PER_POINT - 1, POINTS) + 1
    indptr = np.concatenate([[0], np.cumsum(lengths_N)])
    columns = rng.integers(0, LABELS, indptr[-1], dtype=np.int32)
    truth_NL = sp.csr_array((np.ones(len(columns), np.float32), columns, indptr), shape=(POINTS, LABELS))
    truth_NL.sum_duplicates()
    ids_NK = rng.integers(0, LABELS, (POINTS, k))
    row = np.repeat(np.arange(POINTS), np.diff(truth_NL.indptr))
    ids_NK[row, rng.integers(0, k, len(row))] = truth_NL.indices
    return Ranking(ids_NK, np.empty((POINTS, 0), np.float32)), truth_NL, 1 + 9 * rng.random(LABELS)


def ours(k: int, data: Data) -> dict[str, float]:
    return evaluate(*data, ks=range(1, k + 1), recall_ks=range(1, k + 1))


def straightforward(k: int, data: Data) -> dict[str, float]:
    """The obvious version with numpy and scipy: look up all hits, then take cumulative sums of whole matrices."""
    ranking, truth_NL, weights_L = data
    rows = np.arange(POINTS)
    places_K = np.arange(1, k + 1)
    discount_K = 1 / np.log2(places_K + 1)
    positives_N1 = np.diff(truth_NL.indptr)[:, None]
    ideal_NK = np.cumsum(discount_K)[np.minimum(positives_N1, places_K) - 1]

    found_NK = np.asarray(truth_NL[rows[:, None], ranking.ids_NK].todense()) > 0
    row_E = np.repeat(rows, positives_N1[:, 0])
    order_E = np.lexsort((-weights_L[truth_NL.indices], row_E))
    place_E = np.arange(truth_NL.nnz) - truth_NL.indptr[row_E]
    best_NK = np.zeros((POINTS, max(k, positives_N1.max())))
    best_NK[row_E, place_E] = weights_L[truth_NL.indices[order_E]]

    def sums(gains_NK: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        return {
            "P": np.cumsum(gains_NK, axis=1).sum(axis=0),
            "nDCG": (np.cumsum(gains_NK * discount_K, axis=1) / ideal_NK).sum(axis=0),
            "R": (np.cumsum(gains_NK, axis=1) / positives_N1).sum(axis=0),
        }

    hits, gains, best = sums(found_NK.astype(float)), sums(found_NK * weights_L[ranking.ids_NK]), sums(best_NK[:, :k])
    curves = {"P": hits["P"] / places_K / POINTS, "nDCG": hits["nDCG"] / POINTS, "R": hits["R"] / POINTS}
    curves |= {f"PS{kind}": gains[kind] / best[kind] for kind in gains}
    return {f"{kind}@{cut}": 100 * float(curves[kind][cut - 1]) for kind in KINDS for cut in places_K}


def prepared(k: int) -> Callable[[], dict[str, float]]:
    """The call, whose memory is measured."""
    return functools.partial(ours, k, inputs(k))


def measure() -> list[Row]:
    rows = []
    for k in (5, 100):
        data = inputs(k)
        run = functools.partial(ours, k, data)
        calls = {"ours": run, "peer": functools.partial(straightforward, k, data)}
        values = {name: call() for name, call in calls.items()}
        apart = max(abs(values["ours"][name] - value) / 100 for name, value in values["peer"].items())
        ms = {name: 1e3 * seconds for name, seconds in interleaved(calls, repeats=9, warmup=0).items()}
        what = f"six curves up to k={k}, {POINTS} points, {LABELS} labels, {PER_POINT} per point"
        ratio = ms["peer"] / ms["ours"]
        rows.append(Row(10, what, f"{ms['ours']:.1f} ms", f"numpy/scipy {ms['peer']:.0f} ms", ratio, 1, ">="))
        memory = peak_growth("metrics", "prepared", k) / MEBIBYTE
        rows.append(Row(10, f"{what}: memory", f"{memory:.1f} MiB", "beyond its inputs", memory, 16))
        rows.append(Row(10, f"{what}: equality", f"{apart:.0e}", "numpy/scipy, largest difference", apart, 1e-12))
    return rows
