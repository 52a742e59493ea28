"""Exact search compared with faiss's flat index and bare products; `benchmarks/index` compares indexes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from harness import THREADS, Row, interleaved
from numpy.typing import NDArray
from torch import Tensor

from xmclab.plan.indexes.exact import Exact

LABELS, WIDTH, K = 131_073, 256, 30
BULK, SMALL = 4096, 64  # queries searched at once
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
    return measure_exact()


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


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    for row in measure():
        print(row.met, row)
