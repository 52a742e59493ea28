"""Cluster batches: similar queries together, every query once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Keys, Sampler, View
from xmclab.plan.samplers.cluster import Cluster
from xmclab.plan.samplers.cluster_mix import ClusterMix
from xmclab.plan.samplers.random import Random

NO_TARGETS = sp.csr_array((0, 0))  # what these samplers see of them
KEYS = Keys(0)
ROWS = np.arange(128)


def cohesion(batches: list[np.ndarray], view: View) -> float:
    """Mean cosine between the queries of a batch."""
    unit = view.queries_ND / np.linalg.norm(view.queries_ND, axis=1, keepdims=True)
    return float(np.mean([(unit[batch] @ unit[batch].T).mean() for batch in batches]))


@pytest.mark.parametrize("sampler", [Cluster(batch_size=16), ClusterMix(batch_size=16, cluster_size=8)])
def test_batches_are_more_cohesive_than_random_ones(sampler: Sampler, clustered_view: Callable[..., Any]) -> None:
    view = clustered_view()
    random = cohesion(Random(batch_size=16).plan(ROWS, NO_TARGETS, 0, view, KEYS), view)
    assert cohesion(sampler.plan(ROWS, NO_TARGETS, 0, view, KEYS), view) > random + 0.2


def test_random_before_the_first_view() -> None:
    assert [b.tolist() for b in Cluster(batch_size=16).plan(ROWS, NO_TARGETS, 2, None, KEYS)] == [
        b.tolist() for b in Random(batch_size=16).plan(ROWS, NO_TARGETS, 2, None, KEYS)
    ]


@pytest.mark.parametrize("sampler", [Cluster(batch_size=16), ClusterMix(batch_size=16, cluster_size=8)])
def test_clusters_are_computed_once_per_view(
    sampler: Sampler, computed: list[int], clustered_view: Callable[..., Any]
) -> None:
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


def test_leaves_stay_and_their_order_changes_within_a_view(clustered_view: Callable[..., Any]) -> None:
    sampler, view = Cluster(batch_size=16), clustered_view()
    one, two = ([b.tolist() for b in sampler.plan(ROWS, NO_TARGETS, epoch, view, KEYS)] for epoch in (0, 1))
    assert one != two
    assert sorted(map(sorted, one)) == sorted(map(sorted, two))


def test_release_has_a_power_of_two_of_larger_batches(clustered_view: Callable[..., Any]) -> None:
    sizes = {
        depth: [len(b) for b in Cluster(batch_size=20, depth=depth).plan(ROWS, NO_TARGETS, 0, clustered_view(), KEYS)]
        for depth in ("fit", "release")
    }
    assert sizes["fit"].count(18) + sizes["fit"].count(19) == 7
    assert sizes["release"] == [32] * 4
