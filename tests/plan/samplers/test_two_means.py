"""Balanced recursive 2-means: even leaves, and clusters that are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.plan.samplers import two_means
from xmclab.plan.samplers.two_means import balanced_clusters


@pytest.mark.parametrize("sample", [2, 10**6])
@settings(deadline=None)
@given(st.integers(1, 80), st.data())
def test_leaves_partition_the_rows_evenly(sample: int, num: int, data: st.DataObject) -> None:
    leaves = data.draw(st.integers(1, num))
    rng = np.random.default_rng(num)
    vectors = rng.integers(-1, 2, size=(2 * num, 2)).astype(np.float32)  # many equal ones, and zeros
    rows = rng.permutation(2 * num)[:num]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two_means, "SAMPLE", sample)
        clusters = balanced_clusters(vectors, rows, leaves, rng)
    assert len(clusters) == leaves
    assert np.array_equal(np.sort(np.concatenate(clusters)), np.sort(rows))
    assert max(map(len, clusters)) - min(map(len, clusters)) <= 1


def blobs(centres: int, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(unit vectors around well separated centres, number of the centre of each), in random order."""
    truth = rng.permutation(np.repeat(np.arange(centres), size))
    vectors = np.eye(centres)[truth] + 0.05 * rng.normal(size=(len(truth), centres))
    return vectors.astype(np.float32), truth


@pytest.mark.parametrize("sample", [10, 10**6])
@pytest.mark.parametrize("floats_at_once", [1, 40, 10**6])
def test_two_blobs_are_told_apart(floats_at_once: int, sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_means, "FLOATS_AT_ONCE", floats_at_once)
    monkeypatch.setattr(two_means, "SAMPLE", sample)
    for seed in range(10):
        vectors, truth = blobs(2, 15, np.random.default_rng(seed))
        clusters = balanced_clusters(vectors, np.arange(30), 2, np.random.default_rng(seed))
        assert all(len(set(truth[cluster])) == 1 for cluster in clusters)


def test_only_directions_count() -> None:
    vectors = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    lengths = 2.0 ** np.random.default_rng(1).integers(-3, 4, size=(64, 1)).astype(np.float32)
    plain, scaled = (
        balanced_clusters(x, np.arange(64), 4, np.random.default_rng(2)) for x in (vectors, vectors * lengths)
    )
    assert {frozenset(c.tolist()) for c in plain} == {frozenset(c.tolist()) for c in scaled}


def test_nodes_of_different_sizes_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_means, "_first_directions", lambda x_GMD, sizes, rng: x_GMD[:, 0] - x_GMD[:, 1])
    vectors = np.random.default_rng(0).normal(size=(70, 4)).astype(np.float32)

    def clusters(floats_at_once: int) -> list[set[int]]:
        monkeypatch.setattr(two_means, "FLOATS_AT_ONCE", floats_at_once)
        return [set(c.tolist()) for c in balanced_clusters(vectors, np.arange(70), 5, np.random.default_rng(0))]

    assert clusters(1) == clusters(10**6)


def test_one_split_agrees_with_a_plain_loop() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(21, 3)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    first, second = balanced_clusters(x, np.arange(21), 2, np.random.default_rng(4))
    draw = np.random.default_rng(4)
    one = draw.integers(np.array([21]))[0]
    other = (one + 1 + draw.integers(np.array([20]))[0]) % 21
    towards = x @ (x[one] - x[other])
    for _ in range(two_means.ITERATIONS):
        order = sorted(range(21), key=lambda i: -towards[i])
        left, right = x[order[:10]].sum(axis=0), x[order[10:]].sum(axis=0)
        towards = x @ (left / np.linalg.norm(left) - right / np.linalg.norm(right))
    order = sorted(range(21), key=lambda i: -towards[i])
    assert (set(first.tolist()), set(second.tolist())) == (set(order[:10]), set(order[10:]))


def test_a_large_node_is_ordered_along_the_direction_of_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sample of every row, the large node is split as a small one is, drawn in another order."""
    vectors, _ = blobs(3, 40, np.random.default_rng(0))
    monkeypatch.setattr(two_means, "_first_directions", lambda x_GMD, sizes, rng: x_GMD[:, :1, :].sum(dim=1) * 0 + 1)
    whole = {frozenset(c.tolist()) for c in balanced_clusters(vectors, np.arange(120), 2, np.random.default_rng(0))}
    rows = torch.arange(120)
    two_means._split_large(torch.from_numpy(vectors), rows, 60, np.random.default_rng(0))
    assert {frozenset(rows[:60].tolist()), frozenset(rows[60:].tolist())} == whole
