"""Balanced k-means: even clusters that are found, and tighter than those of the tree."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Keys, View
from xmclab.plan.samplers import cluster, k_means
from xmclab.plan.samplers.cluster import Cluster
from xmclab.plan.samplers.k_means import balanced_k_means
from xmclab.plan.samplers.two_means import balanced_clusters

NO_TARGETS = sp.csr_array((0, 0))  # what these samplers see of them


@pytest.mark.parametrize("most_clusters", [3, 10**6])
@settings(deadline=None)
@given(st.integers(1, 80), st.data())
def test_clusters_partition_the_rows_evenly(most_clusters: int, num: int, data: st.DataObject) -> None:
    leaves = data.draw(st.integers(1, num))
    rng = np.random.default_rng(num)
    vectors = rng.integers(-1, 2, size=(2 * num, 2)).astype(np.float32)  # many equal ones, and zeros
    rows = rng.permutation(2 * num)[:num]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(k_means, "CLUSTERS", most_clusters)
        clusters = balanced_k_means(vectors, rows, leaves, rng)
    assert len(clusters) == leaves
    assert np.array_equal(np.sort(np.concatenate(clusters)), np.sort(rows))
    assert max(map(len, clusters)) - min(map(len, clusters)) <= 1


def mixture(seed: int) -> np.ndarray:
    """Vectors around centres that are of very different weight."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(60, 16))
    weights = rng.pareto(1.5, size=60) + 0.1
    chosen = centres[rng.choice(60, size=4000, p=weights / weights.sum())]
    return (chosen + 0.8 * rng.normal(size=chosen.shape)).astype(np.float32)


def cohesion(clusters: list[np.ndarray], vectors: np.ndarray) -> float:
    """Mean cosine between a vector and the mean direction of its cluster."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return sum(float(np.linalg.norm(unit[c].sum(axis=0))) for c in clusters) / len(vectors)


@pytest.mark.parametrize("seed", range(3))
def test_no_less_cohesive_than_the_tree(seed: int) -> None:
    vectors, rows = mixture(seed), np.arange(4000)
    tree, flat = (make(vectors, rows, 40, np.random.default_rng(0)) for make in (balanced_clusters, balanced_k_means))
    assert cohesion(flat, vectors) >= cohesion(tree, vectors)


def test_a_crowded_cluster_keeps_those_that_would_lose_most() -> None:
    choices = np.array([[0, 1], [0, 1], [0, 1], [1, 0]])
    cosines = np.array([[0.9, 0.8], [0.9, 0.1], [0.7, 0.1], [0.5, 0.4]], dtype=np.float32)
    assert k_means._accept(choices, cosines, np.array([2, 2])).tolist() == [1, 0, 0, 1]
    assert sorted(k_means._accept(choices, cosines, np.array([2, 1])).tolist()) == [-1, 0, 0, 1]


@pytest.mark.parametrize(("method", "tree"), [("two_means", True), ("k_means", False), ("auto", None)])
@pytest.mark.parametrize("queries", [99, 100])
def test_the_method_is_chosen_by_name_or_size(
    method: cluster.Method, tree: bool | None, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "TREE_UP_TO", 100)
    used: list[bool] = []
    for name in ("balanced_clusters", "balanced_k_means"):
        monkeypatch.setattr(
            cluster, name, lambda x, rows, leaves, rng, name=name: used.append(name[9] == "c") or [rows]
        )
    vectors = np.ones((queries, 2), dtype=np.float32)
    Cluster(method=method).plan(np.arange(queries), NO_TARGETS, 0, View(0, vectors, vectors), Keys(0))
    assert used == [queries < 100 if tree is None else tree]
