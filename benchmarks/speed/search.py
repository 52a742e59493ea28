"""Nearest-label search: exact search compared with faiss's flat index and bare products, and approximate mining."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from harness import THREADS, Row, interleaved
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Keys, View
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.lists import Lists
from xmclab.plan.miners.ann import FIRST_PROBES, reach_recall

LABELS, WIDTH, K = 131_073, 256, 30
QUERIES = 300_000  # mined
BULK, SMALL = 4096, 64  # queries searched at once
LISTED = 65536  # queries searched in lists to measure the time per query: as many as are mined at once
BLOCK = 4096  # labels per bare product


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
    return measure_exact() + measure_mining()


def flat_index(z_LD: NDArray[np.float32]) -> Any:
    """faiss's flat index with its defaults."""
    import faiss

    faiss.omp_set_num_threads(THREADS)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(z_LD)
    return index


def products(q_QD: Tensor, z_LD: Tensor) -> None:
    """Only the matrix products of exact search: a lower bound for anything that multiplies all pairs."""
    s_QP = q_QD.new_empty(len(q_QD), BLOCK)
    for z_PD in z_LD.split(BLOCK):
        torch.mm(q_QD, z_PD.T, out=s_QP[:, : len(z_PD)])


def measure_exact() -> list[Row]:
    labels = mixture(LABELS, 2, 1000)
    z_LD, flat, exact = torch.from_numpy(labels), flat_index(labels), Exact()
    exact.build(z_LD)
    rows = []
    for count, k, repeats in [(SMALL, 30, 15), (SMALL, 100, 15), (BULK, 30, 3), (BULK, 100, 3)]:
        queries = mixture(count, 1, 1000)
        q_QD = torch.from_numpy(queries)
        seconds = interleaved(
            {
                "exact": lambda q_QD=q_QD, k=k: exact.search(q_QD, k),
                "flat": lambda queries=queries, k=k: flat.search(queries, k),
                "products": lambda q_QD=q_QD: [products(q_BD, z_LD) for q_BD in q_QD.split(exact.query_block)],
            },
            repeats,
        )
        rows.append(
            Row(
                7,
                f"exact search: {count} queries at once, {LABELS // 1000}K × {WIDTH}, k = {k}",
                f"{1000 * seconds['exact']:.0f} ms",
                f"faiss IndexFlatIP {1000 * seconds['flat']:.0f} ms; bare products {1000 * seconds['products']:.0f} ms",
                seconds["flat"] / seconds["exact"],
                2,
                ">=",
            )
        )
    return rows


def measure_mining() -> list[Row]:
    # 131 labels around a centre contain the 30 nearest; 33 often do not, and the rest are scattered over many lists.
    return [row for count in (1000, 4000) for row in measure_mixture(count)]


def measure_mixture(count: int) -> list[Row]:
    lists = Lists(probes=FIRST_PROBES)
    view = View(0, mixture(LISTED, 1, count), mixture(LABELS, 2, count))
    q_QD, z_LD, flat = torch.from_numpy(view.queries_ND), torch.from_numpy(view.labels_LD), flat_index(view.labels_LD)
    started = time.perf_counter()
    lists.build(z_LD)
    recall = reach_recall(lists, view, Keys(0))
    build = time.perf_counter() - started
    seconds = interleaved(
        {"lists": lambda: lists.search(q_QD, K), "flat": lambda: flat.search(view.queries_ND[:BULK], K)}, 3
    )
    mining, all_pairs = build + QUERIES / len(q_QD) * seconds["lists"], QUERIES / BULK * seconds["flat"]
    return [
        Row(
            7,
            f"mining: {QUERIES} queries, {LABELS // 1000}K × {WIDTH}, k = {K}, {count} centres; "
            f"times of {BULK} (flat) and {len(q_QD)} (lists) queries scaled, building and tuning included",
            f"{lists.probes} of {round(lists.probes / lists.share)} lists: {mining:.0f} s",
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
