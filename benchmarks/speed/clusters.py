"""Balanced cluster batches: seconds and cohesion, compared with the usual recursive 2-means and with ours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from harness import Row, interleaved
from numpy.typing import NDArray

from xmclab.plan.samplers.k_means import balanced_k_means
from xmclab.plan.samplers.two_means import balanced_clusters

Clusters = list[NDArray[np.int64]]


def mixture(rows: int, width: int) -> NDArray[np.float32]:
    """Unit vectors in uneven clusters within 60 regions."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((rows // 300, width), dtype=np.float32) * 0.8
    centres += rng.standard_normal((60, width), dtype=np.float32)[rng.integers(60, size=len(centres))]
    weights = rng.pareto(1.5, size=len(centres)) + 0.1
    x = centres[rng.choice(len(centres), size=rows, p=weights / weights.sum())]
    x += 0.8 * rng.standard_normal(x.shape, dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


def cohesion(x_ND: NDArray[np.float32], clusters: Clusters) -> float:
    """Mean cosine between a vector and the mean direction of its cluster."""
    return sum(float(np.linalg.norm(x_ND[c].sum(axis=0))) for c in clusters) / len(x_ND)


def usual(x_ND: NDArray[np.float32], rows: NDArray[np.int64], leaves: int, rng: np.random.Generator) -> Clusters:
    """Recursive balanced 2-means, node by node, until the split stops improving."""
    if leaves == 1:
        return [rows]
    x = x_ND[rows]
    centres = x[rng.choice(len(rows), 2, replace=False)]
    half, before = len(rows) * (leaves // 2) // leaves, -np.inf
    while True:
        similarity = x @ centres.T
        order = np.argsort(similarity[:, 1] - similarity[:, 0])
        sides = order[:half], order[half:]
        score = np.mean([similarity[side, i].mean() for i, side in enumerate(sides)])
        if score - before < 1e-4:
            break
        before = score
        centres = np.stack([x[side].mean(axis=0) for side in sides])
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return usual(x_ND, rows[sides[0]], leaves // 2, rng) + usual(x_ND, rows[sides[1]], leaves - leaves // 2, rng)


def measure() -> list[Row]:
    return measure_alternatives() + measure_millions()


def measure_alternatives() -> list[Row]:
    x_ND, rows, results = mixture(300_000, 384), np.arange(300_000), {}

    def run(name: str, make: Callable[..., Clusters]) -> None:
        results[name] = make(x_ND, rows, 300, np.random.default_rng(0))

    def timed(alternatives: dict[str, Callable[..., Clusters]], repeats: int) -> dict[str, float]:
        return interleaved(
            {name: lambda name=name, make=make: run(name, make) for name, make in alternatives.items()}, repeats, 0
        )

    seconds = timed({"k_means": balanced_k_means, "two_means": balanced_clusters}, 3) | timed({"usual": usual}, 1)
    tight = {name: cohesion(x_ND, clusters) for name, clusters in results.items()}
    sizes = [len(cluster) for cluster in results["k_means"]]
    what = "300K × 384 into batches of 1000"
    ours = f"k_means {seconds['k_means']:.1f} s"
    return [
        Row(6, f"clusters: {what}, seconds", ours, f"usual recursion {seconds['usual']:.1f} s", seconds["k_means"], 10),
        Row(
            6,
            f"clusters: {what}, cohesion",
            f"k_means {tight['k_means']:.4f}",
            f"two_means {tight['two_means']:.4f}, usual {tight['usual']:.4f}",
            tight["k_means"] / max(tight["two_means"], tight["usual"]),
            1.0,
            ">=",
        ),
        Row(6, f"clusters: {what}, sizes", f"{min(sizes)}-{max(sizes)}", "within one", max(sizes) - min(sizes), 1),
        Row(
            6,
            f"the paper's 2-means: {what}",
            f"two_means {seconds['two_means']:.1f} s",
            f"usual recursion {seconds['usual']:.1f} s",
            seconds["usual"] / seconds["two_means"],
            1.5,
            ">=",
        ),
    ]


def measure_millions() -> list[Row]:
    x_ND = mixture(2_000_000, 64)
    run = {"k_means": lambda: balanced_k_means(x_ND, np.arange(len(x_ND)), 2000, np.random.default_rng(0))}
    seconds = interleaved(run, 1, 0)["k_means"]
    return [Row(6, "clusters: 2M × 64 into batches of 1000", f"k_means {seconds:.0f} s", "a minute", seconds, 60)]


if __name__ == "__main__":
    torch.set_num_threads(2)
    for row in measure():
        print(row.met, row)
