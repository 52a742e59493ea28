"""Indexes: exact search against a plain sort, faiss against exact search, and what both refuse."""

from __future__ import annotations

import sys
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmclab.api import Index
from xmclab.errors import DataError, PluginError
from xmclab.plan.indexes import best, exact, faiss, lists
from xmclab.plan.indexes.exact import Exact, top
from xmclab.plan.indexes.faiss import Faiss
from xmclab.plan.indexes.lists import Lists

EVERY_INDEX = [Exact(), Lists(), Faiss(type="flat"), Faiss(type="hnsw"), Faiss(type="ivf")]
KINDS = ["exact", "lists", "flat", "hnsw", "ivf"]


def naive_top(q: torch.Tensor, z: torch.Tensor, k: int) -> list[list[int]]:
    """Label ids by descending score, then by id."""
    scores = (q @ z.T).tolist()
    return [sorted(range(len(z)), key=lambda label: (-row[label], label))[:k] for row in scores]


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search with and without the compiled loop, whatever the size."""
    for module in (exact, lists):
        monkeypatch.setattr(module, "accelerated", lambda entries: request.param)


@pytest.mark.usefixtures("compiled")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_exact_search_is_the_sorted_list_whatever_the_blocks(
    seed: int, k: int, query_block: int, label_block: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, z = (torch.randint(-2, 3, (n, 2), generator=generator).float() for n in (5, 10))  # many equal scores
    index = Exact(query_block, label_block)
    index.build(z)
    ids, scores = index.search(q, k)
    assert (ids.shape, ids.dtype, scores.dtype) == ((5, k), torch.int64, torch.float32)
    assert ids[:, :10].tolist() == naive_top(q, z, k)
    assert torch.equal(scores[:, :10], (q @ z.T).gather(1, ids[:, :10]))
    assert (ids[:, 10:] == -1).all()
    assert (scores[:, 10:] == -torch.inf).all()


@pytest.mark.usefixtures("compiled")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_all_of_the_lists_are_the_sorted_list(seed: int, k: int, query_block: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, z = (torch.randint(-2, 3, (n, 2), generator=generator).float() for n in (5, 10))  # many equal scores
    index = Lists(lists=count, probes=count, query_block=query_block)
    index.build(z)
    ids, scores = index.search(q, k)
    assert ids[:, :10].tolist() == naive_top(q, z, k)
    assert torch.equal(scores[:, :10], (q @ z.T).gather(1, ids[:, :10]))
    assert (ids[:, 10:] == -1).all()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("looks", [1, 7, 40])
def test_queries_that_look_at_many_lists_are_fewer_at_once(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, z = (torch.randint(-2, 3, (n, 2), generator=generator).float() for n in (30, 60))
    index = Lists(lists=8, probes=3)
    index.build(z)
    expected, sizes = index.search(q, 5), list[int]()
    search_block = index._search_block

    def searched(q_QD: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(len(q_QD))
        return search_block(q_QD, *others)

    monkeypatch.setattr(index, "_search_block", searched)
    monkeypatch.setattr(lists, "LOOKS_AT_ONCE", looks)
    assert all(torch.equal(a, b) for a, b in zip(index.search(q, 5), expected, strict=True))
    assert sizes[0] == max(1, looks // 3)


@pytest.mark.usefixtures("compiled")
def test_lists_find_what_is_in_the_nearest_ones_until_they_have_looked_at_all() -> None:
    generator = torch.Generator().manual_seed(0)
    q, z = (torch.randn(n, 8, generator=generator) for n in (50, 400))
    index = Lists(lists=20, probes=1)
    index.build(z)
    centre_of_label = (z @ index._centres_CD.T).argmax(dim=1)
    nearest = (q @ index._centres_CD.T).argmax(dim=1)
    ids, _ = index.search(q, 5)
    for query in range(50):
        own = torch.nonzero(centre_of_label == nearest[query])[:, 0]
        best = own[(z[own] @ q[query]).argsort(descending=True)][:5].tolist()
        assert ids[query].tolist() == best + [-1] * (5 - len(best))
    shares = [index.share]
    while index.look_further():
        shares.append(index.share)
    assert shares == sorted(set(shares))
    assert shares[-1] == 1
    assert index.search(q, 5)[0].tolist() == naive_top(q, z, 5)


def test_compiled_selection_is_divided_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "WORTH_A_THREAD", 1)
    generator = torch.Generator().manual_seed(0)
    s_QP = torch.randint(0, 5, (7, 90), generator=generator).float()
    rows, labels = torch.tensor([8, 1, 0, 5, 2, 9, 4]), torch.randperm(200, generator=generator)[:90]
    kept = [best.Best(s_QP, 10, 6, compiled) for compiled in (False, True)]
    for each in kept:
        each.keep(rows, s_QP, labels)
        each.keep(rows[:3], s_QP[:3] + 1, labels + 200)
    (ids, scores), (compiled_ids, compiled_scores) = (each.ranked() for each in kept)
    assert torch.equal(ids, compiled_ids)
    assert torch.equal(scores, compiled_scores)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("ascending", [False, True])
def test_exact_search_over_many_blocks(ascending: bool) -> None:
    """Runs, thresholds and merges all come into play; scores that rise with the id fill every merge."""
    generator = torch.Generator().manual_seed(0)
    q, z = (torch.randint(-3, 4, (n, 3), generator=generator).float() for n in (40, 1000))  # many equal scores
    if ascending:
        q, z = torch.ones(40, 3), z[z.sum(dim=1).argsort()]
    index = Exact(query_block=16, label_block=100)
    index.build(z)
    ids, scores = index.search(q, 30)
    assert ids.tolist() == naive_top(q, z, 30)
    assert torch.equal(scores, (q @ z.T).gather(1, ids))


def test_equal_scores_at_the_last_rank_go_to_the_smaller_ids() -> None:
    columns, scores = top(torch.tensor([[1.0, 2.0] + [1.0] * 500]), 3)
    assert columns.tolist() == [[1, 0, 2]]
    assert scores.tolist() == [[2.0, 1.0, 1.0]]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_faiss_agrees_with_exact_search(kind: Literal["flat", "hnsw", "ivf"]) -> None:
    generator = torch.Generator().manual_seed(0)
    q, z = (torch.randn(n, 16, generator=generator) for n in (30, 200))
    exact, approximate = Exact(), Faiss(type=kind, probes=1000)
    for index in (exact, approximate):
        index.build(z)
    (ids, scores), (faiss_ids, faiss_scores) = exact.search(q, 10), approximate.search(q, 10)
    assert (ids == faiss_ids).float().mean() > (0.99 if kind == "hnsw" else 0.9999)
    torch.testing.assert_close(scores, faiss_scores, rtol=0, atol=1e-5 if kind != "hnsw" else 1.0)


def test_faiss_orders_equal_scores_by_id() -> None:
    index = Faiss()
    index.build(torch.tensor([[1.0], [2.0], [1.0], [2.0]]))
    assert index.search(torch.ones(1, 1), 4)[0].tolist() == [[1, 3, 0, 2]]


@pytest.mark.parametrize("index", EVERY_INDEX, ids=KINDS)
def test_more_results_than_labels_are_padded(index: Index) -> None:
    index.build(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    ids, scores = index.search(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 4)
    assert ids.tolist() == [[1, 0, -1, -1], [0, 1, -1, -1]]
    assert scores.tolist() == [[2, 1, -torch.inf, -torch.inf], [-1, -2, -torch.inf, -torch.inf]]


@pytest.mark.parametrize("index", EVERY_INDEX, ids=KINDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_vectors_that_are_not_finite_are_refused_by_id(index: Index, bad: float) -> None:
    good = torch.ones(9, 2)
    broken = good.clone()
    broken[[3, 7], 1] = bad
    with pytest.raises(DataError, match="label 3, 7: 2 of 9 vectors are not finite"):
        index.build(broken)
    index.build(good)
    with pytest.raises(DataError, match="query 3, 7: 2 of 9"):
        index.search(broken, 1)
    with pytest.raises(DataError, match=r"label 0, 1, 2, 3, 4, \.\.\.: 9 of 9"):
        index.build(good * bad)


@pytest.mark.parametrize("index", [Exact(), Faiss()])
def test_searching_before_building_is_refused(index: Index) -> None:
    with pytest.raises(RuntimeError, match="build the index"):
        index.search(torch.ones(1, 2), 1)


def test_missing_faiss_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(PluginError) as caught:
        Faiss()
    assert 'pip install "xmclab[cpu]"' in str(caught.value)
    assert caught.value.exit_code == 4


def test_low_precision_vectors_are_searched_in_float32() -> None:
    z = torch.tensor([[1.0, 0.5], [0.25, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    for index in (Exact(), Faiss()):
        index.build(z)
        ids, scores = index.search(z, 2)
        assert ids.tolist() == [[0, 1], [1, 0]]
        assert scores.dtype == torch.float32
        assert not scores.requires_grad


class OnGpu(torch.Tensor):
    """Says that it is on the second GPU."""

    device = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("kind", "gpus", "like", "moved"),
    [
        ("flat", 2, OnGpu, [1]),
        ("ivf", 2, OnGpu, [1]),
        ("hnsw", 2, OnGpu, []),
        ("flat", 0, OnGpu, []),
        ("flat", 2, torch.Tensor, []),
    ],
)
def test_faiss_uses_the_gpu_of_the_labels_if_it_can(
    kind: Literal["flat", "hnsw", "ivf"], gpus: int, like: type, moved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for faiss built for GPUs notes where an index goes and leaves it where it is."""
    devices: list[int] = []
    index = Faiss(type=kind)
    monkeypatch.setattr(index._faiss, "get_num_gpus", lambda: gpus)
    monkeypatch.setattr(index._faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(
        index._faiss, "index_cpu_to_gpu", lambda gpu, device, cpu: devices.append(device) or cpu, raising=False
    )
    monkeypatch.setattr(faiss, "GPU_MOST", 3)
    z = torch.arange(1.0, 6.0)[:, None]
    index.build(z.as_subclass(like))
    assert devices == moved
    found = [[4, 3, 2, -1, -1]] if moved else [[4, 3, 2, 1, 0]]
    assert index.search(torch.ones(1, 1), 5)[0].tolist() == found
