"""Cluster batches: cohesive, and made anew only when there is something new to see."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Keys, Sampler, View
from xmclab.host.options import make_part
from xmclab.plan.samplers import cluster as cluster_module
from xmclab.plan.samplers.cluster import Cluster
from xmclab.plan.samplers.cluster_mix import ClusterMix
from xmclab.plan.samplers.random import Random

NO_TARGETS = sp.csr_array((0, 0))  # what these samplers see of them

KEYS = Keys(0)
ROWS = np.arange(128)


def clustered_view(epoch: int = 0) -> View:
    rng = np.random.default_rng(epoch)
    vectors = np.eye(8)[rng.integers(8, size=len(ROWS))] + 0.1 * rng.normal(size=(len(ROWS), 8))
    return View(epoch, vectors.astype(np.float32), vectors.astype(np.float32))


def cohesion(batches: list[np.ndarray], view: View) -> float:
    """Mean cosine between the queries of a batch."""
    unit = view.queries_ND / np.linalg.norm(view.queries_ND, axis=1, keepdims=True)
    return float(np.mean([(unit[batch] @ unit[batch].T).mean() for batch in batches]))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of leaves of the clusterings computed so far."""
    calls: list[int] = []
    original = cluster_module.balanced_clusters

    def counting(x: np.ndarray, rows: np.ndarray, leaves: int, rng: np.random.Generator) -> list[np.ndarray]:
        calls.append(leaves)
        return original(x, rows, leaves, rng)

    monkeypatch.setattr(cluster_module, "balanced_clusters", counting)
    return calls


@pytest.mark.parametrize("sampler", [Cluster(batch_size=16), ClusterMix(batch_size=16, cluster_size=8)])
def test_batches_are_more_cohesive_than_random_ones(sampler: Sampler) -> None:
    view = clustered_view()
    random = cohesion(Random(batch_size=16).plan(ROWS, NO_TARGETS, 0, view, KEYS), view)
    assert cohesion(sampler.plan(ROWS, NO_TARGETS, 0, view, KEYS), view) > random + 0.2


def test_random_before_the_first_view() -> None:
    assert [b.tolist() for b in Cluster(batch_size=16).plan(ROWS, NO_TARGETS, 2, None, KEYS)] == [
        b.tolist() for b in Random(batch_size=16).plan(ROWS, NO_TARGETS, 2, None, KEYS)
    ]


@pytest.mark.parametrize("sampler", [Cluster(batch_size=16), ClusterMix(batch_size=16, cluster_size=8)])
def test_clusters_are_computed_once_per_view(sampler: Sampler, computed: list[int]) -> None:
    first, second = clustered_view(0), clustered_view(5)
    for epoch in range(5):
        sampler.plan(ROWS, NO_TARGETS, epoch, first, KEYS)
    assert len(computed) == 1
    old = sampler.plan(ROWS, NO_TARGETS, 5, first, KEYS)
    new = sampler.plan(ROWS, NO_TARGETS, 5, second, KEYS)
    assert len(computed) == 2
    assert {frozenset(b.tolist()) for b in old} != {frozenset(b.tolist()) for b in new}
    sampler.plan(ROWS[:100], NO_TARGETS, 5, second, KEYS)
    sampler.plan(ROWS[:100], NO_TARGETS, 5, second, Keys(1))
    assert len(computed) == 4


def test_leaves_stay_and_their_order_changes_within_a_view() -> None:
    sampler, view = Cluster(batch_size=16), clustered_view()
    one, two = ([b.tolist() for b in sampler.plan(ROWS, NO_TARGETS, epoch, view, KEYS)] for epoch in (0, 1))
    assert one != two
    assert sorted(map(sorted, one)) == sorted(map(sorted, two))


def test_release_has_a_power_of_two_of_larger_batches() -> None:
    sizes = {
        depth: [len(b) for b in Cluster(batch_size=20, depth=depth).plan(ROWS, NO_TARGETS, 0, clustered_view(), KEYS)]
        for depth in ("fit", "release")
    }
    assert sizes["fit"].count(18) + sizes["fit"].count(19) == 7
    assert sizes["release"] == [32] * 4


def test_mixed_clusters_double_on_schedule(computed: list[int]) -> None:
    sampler = make_part(ClusterMix, {"batch_size": "64", "cluster_size": "4", "double_at": "2,3"}, "sampler")
    view = clustered_view()
    assert [sampler.size_at(epoch) for epoch in range(5)] == [4, 4, 8, 16, 16]
    for epoch in range(5):
        assert [len(batch) for batch in sampler.plan(ROWS, NO_TARGETS, epoch, view, KEYS)] == [64, 64]
    assert computed == [32, 16, 8]


def test_a_mixed_batch_is_made_of_whole_clusters() -> None:
    sampler, view = ClusterMix(batch_size=32, cluster_size=8), clustered_view()
    clusters = [
        set(c.tolist()) for c in cluster_module.balanced_clusters(view.queries_ND, ROWS, 16, KEYS.rng("cluster", 0))
    ]
    batches = [set(b.tolist()) for b in sampler.plan(ROWS, NO_TARGETS, 0, view, KEYS)]
    assert all(any(cluster <= batch for batch in batches) for cluster in clusters)
