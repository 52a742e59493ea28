"""Mined negatives: the nearest labels that are allowed, by an index of the right size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Keys, View
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss
from xmclab.plan.indexes.lists import Lists
from xmclab.plan.miners import ann
from xmclab.plan.miners.ann import AnnMiner

KEYS = Keys(0)


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
        miner = AnnMiner()
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
    miner = AnnMiner(index="faiss", faiss_type=faiss_type)
    miner.refresh(view, exclude, 3, KEYS)
    drawn = miner.sample(np.arange(20), 3, exclude, rng)
    assert [sorted(row.tolist()) for row in drawn] == [sorted(row) for row in naive_hardest(view, exclude, 3)]


def mixture_view(queries: int, labels: int) -> View:
    """Vectors around common centres, as those of a trained model are."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, 16))
    return View(
        0, *((centres[rng.integers(50, size=n)] + rng.normal(size=(n, 16))).astype("f4") for n in (queries, labels))
    )


@pytest.mark.parametrize("make", [lambda: Faiss(type="ivf", probes=1), lambda: Lists(probes=1)], ids=["ivf", "lists"])
@pytest.mark.parametrize("goal", [0.0, 0.99, 1.0])
def test_ann_looks_further_until_the_recall_is_reached_and_reports_it(
    goal: float, make: Callable[[], Faiss | Lists], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ann, "RECALL_GOAL", goal)
    monkeypatch.setattr(AnnMiner, "_make_index", lambda self, view: make())
    view = mixture_view(300, 4000)
    exclude = sp.csr_array((300, 4000), dtype=bool)
    miner = AnnMiner(index="faiss")
    assert miner.report() == {}
    miner.refresh(view, exclude, 30, KEYS)
    hardest = naive_hardest(view, exclude, 30)
    drawn = miner.sample(np.arange(300), 30, exclude, np.random.default_rng(0))
    recall = np.mean([len(set(row) & set(best)) / 30 for row, best in zip(drawn.tolist(), hardest, strict=True)])
    assert miner.report()["recall"] == pytest.approx(recall, abs=1e-3)
    assert recall >= goal
    assert goal > 0 or recall < 0.9


@pytest.mark.parametrize(
    ("index", "device", "most", "numba", "kind"),
    [
        ("auto", "cpu", 100, True, Exact),
        ("auto", "cpu", 99, True, Lists),
        ("auto", "cpu", 99, False, Faiss),
        ("auto", "cuda", 99, True, Exact),
        ("exact", "cpu", 99, True, Exact),
        ("faiss", "cpu", 100, True, Faiss),
    ],
)
def test_ann_chooses_its_index_by_size(
    index: Literal["auto", "exact", "faiss"],
    device: str,
    most: int,
    numba: bool,
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ann, "EXACT_UP_TO", most)
    monkeypatch.setattr(ann, "numba_works", lambda: numba)
    vectors = np.ones((10, 2), dtype=np.float32)
    assert type(AnnMiner(index=index)._make_index(View(0, vectors, vectors, device))) is kind


@pytest.mark.parametrize("lists", [Faiss, Lists])
@pytest.mark.parametrize(("worth_it", "recall"), [(1.0, 0.9), (0.0, 1.0)])
def test_auto_turns_to_exact_search_when_lists_do_not_pay(
    worth_it: float, recall: float, lists: type[Faiss | Lists], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"EXACT_UP_TO": 0, "FIRST_PROBES": 1, "RECALL_GOAL": 0.0}.items():
        monkeypatch.setattr(ann, name, value)
    monkeypatch.setattr(ann, "numba_works", lambda: lists is Lists)
    monkeypatch.setattr(lists, "pays_up_to", worth_it)
    miner = AnnMiner()
    miner.refresh(mixture_view(100, 4000), sp.csr_array((100, 4000), dtype=bool), 30, KEYS)
    assert (miner.report()["recall"] < recall) if worth_it else (miner.report() == {"recall": recall})


def test_ann_chooses_exact_search_without_numba_and_faiss(
    monkeypatch: pytest.MonkeyPatch, random_case: Callable[..., Any]
) -> None:
    monkeypatch.setattr(ann, "EXACT_UP_TO", 0)
    monkeypatch.setattr(ann, "numba_works", lambda: False)
    monkeypatch.setattr(ann, "find_spec", lambda name: None)
    _, view, exclude = random_case(1)
    miner = AnnMiner()
    miner.refresh(view, exclude, 2, KEYS)
    assert miner.report() == {"recall": 1.0}


def test_ann_draws_uniformly_from_what_it_mined() -> None:
    view = View(0, np.ones((1, 1), dtype=np.float32), np.arange(6, dtype=np.float32)[:, None])
    exclude = sp.csr_array(np.array([[0, 0, 0, 0, 0, 1]], dtype=bool))
    miner = AnnMiner()
    miner.refresh(view, exclude, 4, KEYS)
    drawn = miner.sample(np.zeros(4000, dtype=np.int64), 2, exclude, np.random.default_rng(0))
    share = np.bincount(drawn.ravel(), minlength=6) / len(drawn)
    assert share[[0, 5]].sum() == 0
    assert np.abs(share[1:5] - 0.5).max() < 0.04


def test_ann_has_nothing_before_the_first_refresh_and_forgets_the_last(random_case: Callable[..., Any]) -> None:
    _, view, _ = random_case(1)
    exclude = sp.csr_array((len(view.queries_ND), len(view.labels_LD)), dtype=bool)
    rows, rng = np.arange(exclude.shape[0]), np.random.default_rng(0)
    miner = AnnMiner()
    assert AnnMiner.needs_view
    assert (miner.sample(rows, 3, exclude, rng) == -1).all()
    miner.refresh(view, exclude, 1, KEYS)
    opposite = View(1, -view.queries_ND, view.labels_LD)
    before = miner.sample(rows, 1, exclude, rng)
    miner.refresh(opposite, exclude, 1, KEYS)
    assert not np.array_equal(before, miner.sample(rows, 1, exclude, rng))
