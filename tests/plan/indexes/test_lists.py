"""Lists: the nearest ones against a plain loop, and all of them against a plain sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmclab.plan.indexes import lists
from xmclab.plan.indexes.lists import Lists


@pytest.mark.usefixtures("compiled")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_all_of_the_lists_are_the_sorted_list(
    naive_top: Callable[..., Any], seed: int, k: int, query_block: int, count: int
) -> None:
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
def test_lists_find_what_is_in_the_nearest_ones_until_they_have_looked_at_all(naive_top: Callable[..., Any]) -> None:
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
