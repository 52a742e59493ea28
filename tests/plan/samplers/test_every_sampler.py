"""What every sampler promises: a partition into even batches, pure in (seed, epoch, view)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Keys, Sampler, View
from xmclab.plan.samplers.cluster import Cluster
from xmclab.plan.samplers.cluster_mix import ClusterMix
from xmclab.plan.samplers.random import Random

NO_TARGETS = sp.csr_array((0, 0))  # what these samplers see of them

SAMPLERS = {
    "random": Random,
    "cluster": Cluster,
    "cluster_release": lambda **options: Cluster(depth="release", **options),
    "cluster_k_means": lambda **options: Cluster(method="k_means", **options),
    "cluster_mix_k_means": lambda **options: ClusterMix(cluster_size=2, double_at=(2,), method="k_means", **options),
    "cluster_mix": lambda **options: ClusterMix(cluster_size=2, double_at=(2,), **options),
}

ANOTHER_PROCESS = """
import json, sys
import numpy as np
from xmclab.api import Keys, View
from xmclab.plan.samplers.cluster import Cluster
from xmclab.plan.samplers.cluster_mix import ClusterMix
from xmclab.plan.samplers.random import Random

vectors = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
view = View(1, vectors, vectors)
samplers = Random(batch_size=7), Cluster(batch_size=7, method="k_means"), ClusterMix(batch_size=7, cluster_size=3)
json.dump([[b.tolist() for b in s.plan(np.arange(40), None, 3, view, Keys(5))] for s in samplers], sys.stdout)
"""


def make_view(num: int, epoch: int = 0, seed: int = 0) -> View:
    vectors = np.random.default_rng(seed).normal(size=(num, 4)).astype(np.float32)
    return View(epoch, vectors, vectors)


def plan(sampler: Sampler, rows: np.ndarray, epoch: int, view: View | None, seed: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in sampler.plan(rows, NO_TARGETS, epoch, view, Keys(seed))]


@pytest.mark.parametrize("name", SAMPLERS)
@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    epoch=st.integers(0, 4),
    viewed=st.booleans(),
    seed=st.integers(0, 9),
)
def test_an_epoch_visits_each_query_once_in_even_batches(
    name: str, num: int, batch_size: int, epoch: int, viewed: bool, seed: int
) -> None:
    everyone = np.random.default_rng(seed).permutation(2 * num)
    rows = np.sort(everyone[:num])
    sampler = SAMPLERS[name](batch_size=batch_size)
    batches = sampler.plan(rows, NO_TARGETS, epoch, make_view(2 * num) if viewed else None, Keys(seed))
    assert np.array_equal(np.sort(np.concatenate(batches)), rows)
    sizes = [len(batch) for batch in batches]
    assert max(sizes) - min(sizes) <= 1
    assert all(batch.dtype == np.int64 for batch in batches)
    expected = math.ceil(num / batch_size)
    if name == "cluster_release":
        expected = 2 ** math.floor(math.log2(max(1, num / batch_size)))
    assert len(batches) == expected


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("viewed", [False, True])
def test_epochs_and_seeds_differ_and_repeat(name: str, viewed: bool) -> None:
    rows, view = np.arange(64), make_view(64) if viewed else None
    sampler = SAMPLERS[name](batch_size=4)
    first = plan(sampler, rows, 0, view)
    assert plan(sampler, rows, 1, view) != first
    assert plan(sampler, rows, 0, view, seed=1) != first
    assert plan(sampler, rows, 0, view) == first == plan(SAMPLERS[name](batch_size=4), rows, 0, view)


def test_same_plan_in_another_process() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    samplers = Random(batch_size=7), Cluster(batch_size=7, method="k_means"), ClusterMix(batch_size=7, cluster_size=3)
    here = [plan(sampler, np.arange(40), 3, View(1, vectors, vectors), seed=5) for sampler in samplers]
    other_hashes = os.environ | {"PYTHONHASHSEED": str(hash("a") % 1000 + 1)}
    there = subprocess.run([sys.executable, "-c", ANOTHER_PROCESS], env=other_hashes, capture_output=True, check=True)
    assert json.loads(there.stdout) == here
