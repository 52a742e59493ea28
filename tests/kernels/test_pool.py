"""The compiled loops give what the numpy versions give, number by number, from the same generator."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Batch, Miner
from xmclab.kernels import dispatch as accelerator
from xmclab.plan import draws, pool
from xmclab.plan.miners.ann import AnnMiner
from xmclab.plan.miners.random import RandomMiner
from xmclab.plan.pool import build_batch


def sparse(rng: np.random.Generator, shape: tuple[int, int], density: float) -> sp.csr_array:
    return sp.csr_array((rng.random(shape) < density) * (rng.random(shape) + 0.1).astype(np.float32))


def parts(batch: Batch) -> list[np.ndarray]:
    return [batch.rows_Q, batch.labels_P, *batch.positives, *batch.ignored]


def in_both(function: Any, *arguments: Any) -> tuple[Any, Any]:
    """What a function gives with numpy and with the compiled loops."""
    results = []
    for entries in (1 << 62, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accelerator, "WORTH_LOADING", entries)
            results.append(function(*arguments))
    return results[0], results[1]


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 5, 20, 1000]), st.sampled_from([1, 3, 10**6]))
def test_batches_are_identical(index_type: type, seed: int, cap: int, beta: int) -> None:
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 40)), int(rng.integers(1, 300))
    density = rng.choice([0.0, 0.02, 0.2])
    targets, filtered = sparse(rng, shape, density), sparse(rng, shape, density)
    for matrix in (targets, filtered):
        matrix.indices, matrix.indptr = matrix.indices.astype(index_type), matrix.indptr.astype(index_type)
    rows = rng.permutation(shape[0])[: rng.integers(0, shape[0] + 1)]
    mined = rng.integers(-1, shape[1], size=(len(rows), rng.integers(0, 7)))

    def build() -> Batch:
        return build_batch(rows, targets, filtered, mined, beta, cap, np.random.default_rng(seed))

    plain, compiled = in_both(build)
    for one, two in zip(parts(plain), parts(compiled), strict=True):
        assert one.dtype == two.dtype
        assert np.array_equal(one, two)
    assert (plain.dropped, plain.missing) == (compiled.dropped, compiled.missing)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 8))
def test_mined_negatives_are_identical(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 20)), int(rng.integers(1, 30))
    exclude = sparse(rng, shape, rng.choice([0.0, 0.3, 0.9, 1.0]))
    near = AnnMiner()
    near._mined_N = rng.integers(0, 6, shape[0])
    near._hard_NH = np.where(np.arange(5) < near._mined_N[:, None], rng.integers(0, 30, (shape[0], 5)), -1).astype("i4")
    rows = rng.permutation(shape[0])

    def sample(miner: Miner) -> np.ndarray:
        return miner.sample(rows, n, exclude, np.random.default_rng(seed))

    for miner in (RandomMiner(), near):
        plain, compiled = in_both(sample, miner)
        assert plain.dtype == compiled.dtype == np.int64
        assert np.array_equal(plain, compiled)


def test_random_negatives_of_a_matrix_with_repeated_entries() -> None:
    exclude = sp.csr_array((np.ones(4), np.array([3, 0, 3, 0]), np.array([0, 4])), shape=(1, 5))
    drawn = in_both(lambda: RandomMiner().sample(np.array([0]), 4, exclude, np.random.default_rng(0)))
    assert [sorted(labels[0].tolist()) for labels in drawn] == [[-1, 1, 2, 4]] * 2


def test_the_compiled_loops_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = sparse(np.random.default_rng(0), (20, 30), 0.3)
    monkeypatch.setattr(accelerator, "WORTH_LOADING", 0)
    for module, name in ((pool, "row_pairs"), (pool, "sorted_unique"), (draws.np, "where")):
        monkeypatch.setattr(module, name, None)
    mined = np.zeros((20, 1), dtype=np.int64)
    assert len(build_batch(np.arange(20), targets, targets, mined, 2, 0, np.random.default_rng(0)).rows_Q)


@pytest.mark.parametrize("entries", [1 << 62, 0])
@pytest.mark.parametrize("cap", [0, 50])
def test_nothing_of_the_size_of_the_label_set_is_made(entries: int, cap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "WORTH_LOADING", entries)
    rng = np.random.default_rng(0)
    labels = 50_000_000
    targets = sp.csr_array((np.ones(200, np.float32), (np.repeat(np.arange(20), 10), rng.integers(0, labels, 200))))
    targets.resize(20, labels)
    rows = np.arange(20)

    def plan() -> Batch:
        mined = RandomMiner().sample(rows, 3, targets, rng)
        return build_batch(rows, targets, targets, mined, 3, cap, rng)

    plan()
    tracemalloc.start()
    plan()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**40)), st.sets(st.integers(0, 2**40)), st.integers(0, 2**32))
def test_tally_of_any_labels(brought: list[int], taken: set[int], seed: int) -> None:
    shared = np.random.default_rng(seed).permutation(sorted(taken))[:5].tolist()
    arguments = [np.array(labels, dtype=np.int64) for labels in (brought + shared + brought[:3], sorted(taken))]
    plain, compiled = (dict(zip(*pool.tally(*arguments, flag), strict=True)) for flag in (False, True))
    assert plain == compiled


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**40)), st.lists(st.lists(st.integers(-1, 30), min_size=3, max_size=3)))
def test_union_of_any_labels(sampled: list[int], mined: list[list[int]]) -> None:
    arguments = np.array(sampled, dtype=np.int64), np.array(mined, dtype=np.int64).reshape(-1, 3)
    plain, compiled = (pool.union(*arguments, flag) for flag in (False, True))
    assert plain.dtype == compiled.dtype
    assert plain.tolist() == compiled.tolist() == sorted({*sampled, *itertools.chain(*mined)} - {-1})
