"""The compiled loop gives the metrics of the numpy version, bit for bit, in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Ranking
from xmclab.data import propensity
from xmclab.evaluation import metrics
from xmclab.kernels import dispatch as accelerator


def problem(seed: int, rows: int, labels: int, density: float, depth: int) -> tuple[Ranking, sp.csr_array, np.ndarray]:
    """A ranking with pads, repeated ids and ids outside the labels; truth with empty and with long rows."""
    rng = np.random.default_rng(seed)
    truth = rng.random((rows, labels)) < density * rng.random((rows, 1)) ** 2 * 2
    ids = rng.integers(-1, labels + 1, (rows, depth))
    return Ranking(ids, np.zeros(ids.shape, np.float32)), sp.csr_array(truth.astype(np.float32)), 1 + rng.random(labels)


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 30),
    st.sampled_from([1, 7, 300]),
    st.sampled_from([0.0, 0.1, 0.9]),
    st.sampled_from([1, 5, 40]),
)
def test_metrics_are_identical(index_type: type, seed: int, rows: int, labels: int, density: float, depth: int) -> None:
    ranking, truth, weights = problem(seed, rows, labels, density, depth)
    truth.indices, truth.indptr = truth.indices.astype(index_type), truth.indptr.astype(index_type)
    groups = propensity.LabelGroups(("a", "b"), np.arange(labels) % 2)
    found = []
    for entries in (1 << 62, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accelerator, "WORTH_LOADING", entries)
            found.append(metrics.contributions(ranking, truth, weights, groups, (1, 2, 5, 50), (3, 40, 500)))
    assert found[0] == found[1]


def test_the_compiled_loop_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "WORTH_LOADING", 0)
    monkeypatch.setattr(metrics, "_add_rows", None)
    assert metrics.evaluate(*problem(0, 20, 7, 0.9, 5), ks=(5,))["P@5"] > 0


def test_unsorted_and_repeated_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = sp.csr_array((np.array([1.0, 0.0, 1.0, 1.0]), np.array([3, 1, 0, 3]), np.array([0, 4])), shape=(1, 4))
    ranking = Ranking(np.array([[3, 1]]), np.zeros((1, 2), np.float32))
    for entries in (1 << 62, 0):
        monkeypatch.setattr(accelerator, "WORTH_LOADING", entries)
        values = metrics.evaluate(ranking, truth, np.ones(4), (2,), (2,))
        assert (values["P@2"], values["R@2"]) == (50, 50)
    assert truth.nnz == 4


@pytest.mark.parametrize("entries", [1 << 62, 0])
def test_memory_does_not_grow_with_rows_times_depth(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "WORTH_LOADING", entries)
    arguments = problem(0, 20_000, 50, 0.1, 50)
    ks = range(1, 51)
    metrics.evaluate(*arguments, ks, ks)
    tracemalloc.start()
    metrics.evaluate(*arguments, ks, ks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
