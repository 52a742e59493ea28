"""Search of the nearest labels: exact beside faiss's flat index, and approximate mining beside both."""

from __future__ import annotations

import time
from importlib.util import find_spec

import numpy as np
import torch
from harness import THREADS, Row, interleaved
from numpy.typing import NDArray

from xmclab.api import Keys, View
from xmclab.indexes.exact import Exact
from xmclab.indexes.faiss import Faiss
from xmclab.miners.ann import FIRST_PROBES, reach_recall

LABELS, WIDTH, K = 131_073, 256, 30
QUERIES, SEARCHED = 300_000, 10_000  # mined, and searched to measure the time of a query


def mixture(rows: int, seed: int, count: int) -> NDArray[np.float32]:
    """Unit vectors around `count` common centres."""
    centres = np.random.default_rng(0).standard_normal((count, WIDTH), dtype=np.float32)
    rng = np.random.default_rng(seed)
    x = centres[rng.integers(count, size=rows)] + 0.8 * rng.standard_normal((rows, WIDTH), dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


def measure() -> list[Row]:
    if find_spec("faiss") is None:
        print("search: faiss is not installed, skipped")
        return []
    # 131 labels around a centre hold the 30 nearest; 33 often do not, and the rest are strewn over many lists.
    return measure_mixture(1000) + measure_mixture(4000)


def measure_mixture(count: int) -> list[Row]:
    import faiss

    faiss.omp_set_num_threads(THREADS)
    view = View(0, mixture(SEARCHED, 1, count), mixture(LABELS, 2, count))
    q_QD, z_LD = torch.from_numpy(view.queries_ND), torch.from_numpy(view.labels_LD)
    exact, flat, lists = Exact(), faiss.IndexFlatIP(WIDTH), Faiss(type="ivf", probes=FIRST_PROBES)
    exact.build(z_LD)
    flat.add(view.labels_LD)
    started = time.perf_counter()
    lists.build(z_LD)
    recall = reach_recall(lists, view, Keys(0))
    build = time.perf_counter() - started
    seconds = interleaved(
        {
            "exact": lambda: exact.search(q_QD, K),
            "flat": lambda: flat.search(view.queries_ND, K),
            "lists": lambda: lists.search(q_QD, K),
        },
        3,
    )
    scale = QUERIES / SEARCHED
    mining, all_pairs = build + scale * seconds["lists"], scale * seconds["flat"]
    size = f"{LABELS // 1000}K × {WIDTH}, k = {K}, {count} centres"
    return [
        Row(
            7,
            f"exact search: {SEARCHED} queries, {size}",
            f"{seconds['exact']:.1f} s",
            f"faiss IndexFlatIP {seconds['flat']:.1f} s",
            seconds["flat"] / seconds["exact"],
            2,
            ">=",
        ),
        Row(
            7,
            f"mining: {QUERIES} queries, {size}; times of {SEARCHED} queries scaled, building and tuning included",
            f"ivf, {lists.probes} probes: {mining:.0f} s",
            f"faiss IndexFlatIP {all_pairs:.0f} s",
            all_pairs / mining,
            5,
            ">=",
        ),
        Row(7, f"recall@{K} of it, on a sample, {count} centres", f"{recall:.4f}", "exact search", recall, 0.99, ">="),
    ]


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    for row in measure():
        print(row.met, row)
