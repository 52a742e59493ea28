"""Exact search against a plain sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.plan.indexes.exact import Exact, top


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_exact_search_is_the_sorted_list_whatever_the_blocks(
    naive_top: Callable[..., Any], seed: int, k: int, query_block: int, label_block: int
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


@pytest.mark.parametrize("ascending", [False, True])
def test_exact_search_over_many_blocks(ascending: bool, naive_top: Callable[..., Any]) -> None:
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


@pytest.mark.parametrize(("queries", "labels"), [(1, 65536), (4, 65536), (16, 16384), (64, 4096), (1024, 4096)])
def test_few_queries_are_compared_with_more_labels_at_once(queries: int, labels: int) -> None:
    """So that one query on a CPU is a product and little more; a choice of one's own stays."""
    for index, expected in ((Exact(), labels), (Exact(label_block=100), 100)):
        index.build(torch.eye(3))
        assert index._labels_at_once(queries) == expected
