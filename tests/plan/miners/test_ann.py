"""Mined negatives: the nearest labels that are allowed, by whatever index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Index, Keys, View
from xmclab.plan.indexes import auto
from xmclab.plan.indexes.auto import Auto
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss
from xmclab.plan.miners import ann
from xmclab.plan.miners.ann import AnnMiner

KEYS = Keys(0)


def made(index: Index) -> AnnMiner:
    """A miner that uses this index."""
    miner = AnnMiner()
    miner.index = index
    return miner


def naive_hardest(view: View, exclude: sp.csr_array, depth: int) -> list[list[int]]:
    """The best allowed labels of each query, one by one."""
    forbidden = exclude.toarray()
    hardest = []
    for i, query in enumerate(view.queries_ND):
        allowed = [label for label in range(len(view.labels_LD)) if not forbidden[i, label]]
        hardest.append(sorted(allowed, key=lambda label: (-float(query @ view.labels_LD[label]), label))[:depth])
    return hardest


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([1, 7, 10**6]))
def test_ann_keeps_the_nearest_labels_that_are_not_excluded(
    random_case: Callable[..., Any], seed: int, depth: int, results_at_once: int
) -> None:
    rng, view, exclude = random_case(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ann, "RESULTS_AT_ONCE", results_at_once)
        miner = made(Exact())
        miner.refresh(view, exclude, depth, KEYS)
    drawn = miner.sample(np.arange(exclude.shape[0]), depth, exclude, rng)
    assert [sorted(row[row >= 0].tolist()) for row in drawn] == [
        sorted(row) for row in naive_hardest(view, exclude, depth)
    ]


@pytest.mark.parametrize("faiss_type", ["flat", "hnsw", "ivf"])
def test_ann_with_faiss_finds_the_same(faiss_type: Literal["flat", "hnsw", "ivf"]) -> None:
    rng = np.random.default_rng(0)
    view = View(0, *(rng.normal(size=(n, 8)).astype(np.float32) for n in (20, 30)))
    exclude = sp.csr_array(rng.random((20, 30)) < 0.2)
    miner = made(Faiss(type=faiss_type))
    miner.refresh(view, exclude, 3, KEYS)
    drawn = miner.sample(np.arange(20), 3, exclude, rng)
    assert [sorted(row.tolist()) for row in drawn] == [sorted(row) for row in naive_hardest(view, exclude, 3)]


def test_ann_reports_the_index_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch, random_case: Callable[..., Any]
) -> None:
    _, view, exclude = random_case(1)
    miner = made(Auto(recall=0.0))
    assert miner.report() == {}
    miner.refresh(view, exclude, 2, KEYS)
    assert miner.report() == {"recall": 1.0, "index": {"name": "exact", "options": {}, "recall": 1.0}}
    monkeypatch.setattr(auto, "LISTS_FROM", 0)
    miner.refresh(view, exclude, 2, KEYS)
    assert miner.report()["index"]["name"] == "faiss"


def test_ann_leaves_the_index_of_the_run_unbuilt(random_case: Callable[..., Any]) -> None:
    _, view, exclude = random_case(1)
    miner = made(Exact())
    miner.refresh(view, exclude, 2, KEYS)
    with pytest.raises(RuntimeError, match="build the index"):
        miner.index.search(torch.ones(1, 3), 1)


def test_ann_draws_uniformly_from_what_it_mined() -> None:
    view = View(0, np.ones((1, 1), dtype=np.float32), np.arange(6, dtype=np.float32)[:, None])
    exclude = sp.csr_array(np.array([[0, 0, 0, 0, 0, 1]], dtype=bool))
    miner = made(Exact())
    miner.refresh(view, exclude, 4, KEYS)
    drawn = miner.sample(np.zeros(4000, dtype=np.int64), 2, exclude, np.random.default_rng(0))
    share = np.bincount(drawn.ravel(), minlength=6) / len(drawn)
    assert share[[0, 5]].sum() == 0
    assert np.abs(share[1:5] - 0.5).max() < 0.04


def test_ann_has_nothing_before_the_first_refresh_and_forgets_the_last(random_case: Callable[..., Any]) -> None:
    _, view, _ = random_case(1)
    exclude = sp.csr_array((len(view.queries_ND), len(view.labels_LD)), dtype=bool)
    rows, rng = np.arange(exclude.shape[0]), np.random.default_rng(0)
    miner = made(Exact())
    assert AnnMiner.needs_view
    assert (miner.sample(rows, 3, exclude, rng) == -1).all()
    miner.refresh(view, exclude, 1, KEYS)
    opposite = View(1, -view.queries_ND, view.labels_LD)
    before = miner.sample(rows, 1, exclude, rng)
    miner.refresh(opposite, exclude, 1, KEYS)
    assert not np.array_equal(before, miner.sample(rows, 1, exclude, rng))
