"""Mixed batches: made of whole clusters, which double on schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Keys
from xmclab.host.options import make_part
from xmclab.plan.samplers import cluster as cluster_module
from xmclab.plan.samplers.cluster_mix import ClusterMix
from xmclab.plan.samplers.random import Random

NO_TARGETS = sp.csr_array((0, 0))  # what these samplers see of them
KEYS = Keys(0)
ROWS = np.arange(128)


def test_mixed_clusters_double_on_schedule(computed: list[int], clustered_view: Callable[..., Any]) -> None:
    sampler = make_part(ClusterMix, {"batch_size": "64", "cluster_size": "4", "double_at": "2,3"}, "sampler")
    view = clustered_view()
    assert [sampler.size_at(epoch) for epoch in range(5)] == [4, 4, 8, 16, 16]
    for epoch in range(5):
        assert [len(batch) for batch in sampler.plan(ROWS, NO_TARGETS, epoch, view, KEYS)] == [64, 64]
    assert computed == [32, 16, 8]


def test_a_mixed_batch_is_made_of_whole_clusters(clustered_view: Callable[..., Any]) -> None:
    sampler, view = ClusterMix(batch_size=32, cluster_size=8), clustered_view()
    clusters = [
        set(c.tolist()) for c in cluster_module.balanced_clusters(view.queries_ND, ROWS, 16, KEYS.rng("cluster", 0))
    ]
    batches = [set(b.tolist()) for b in sampler.plan(ROWS, NO_TARGETS, 0, view, KEYS)]
    assert all(any(cluster <= batch for batch in batches) for cluster in clusters)


def test_the_schedule_of_ngame(computed: list[int], clustered_view: Callable[..., Any]) -> None:
    """Single queries at first, from epoch 10 on clusters that double; fixed batches of whole clusters."""
    doublings = (10, 20, 25, 50, 75, 100, 125, 150, 200)
    sampler = ClusterMix(batch_size=32, cluster_size=1, double_at=doublings)
    for epoch in range(300):
        size = 1
        for doubling in doublings:
            size *= 2 if epoch >= doubling else 1
        assert sampler.size_at(epoch) == size
    view, random = clustered_view(), Random(batch_size=32)
    for epoch in (0, 9):
        batches = sampler.plan(ROWS, NO_TARGETS, epoch, view, KEYS)
        assert all(map(np.array_equal, batches, random.plan(ROWS, NO_TARGETS, epoch, None, KEYS)))
    assert computed == []
    for epoch, leaves in ((10, 64), (50, 8), (200, 1)):
        batches = sampler.plan(ROWS, NO_TARGETS, epoch, view, KEYS)
        assert [len(batch) for batch in batches] == [32] * 4
        assert sorted(np.concatenate(batches).tolist()) == ROWS.tolist()
        assert computed[-1] == leaves
