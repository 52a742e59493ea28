"""What every index promises: padding, float32 scores, and no vectors that are not finite."""

from __future__ import annotations

import pytest
import torch

from xmclab.api import Index
from xmclab.errors import DataError
from xmclab.plan.indexes.auto import Auto
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss

EVERY_INDEX = [Auto(), Exact(), Faiss(type="flat"), Faiss(type="hnsw"), Faiss(type="ivf")]
KINDS = ["auto", "exact", "flat", "hnsw", "ivf"]


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


@pytest.mark.parametrize("index", [Auto(), Exact(), Faiss()])
def test_searching_before_building_is_refused(index: Index) -> None:
    with pytest.raises(RuntimeError, match="build the index"):
        index.search(torch.ones(1, 2), 1)


def test_low_precision_vectors_are_searched_in_float32() -> None:
    z = torch.tensor([[1.0, 0.5], [0.25, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    for index in (Auto(), Exact(), Faiss()):
        index.build(z)
        ids, scores = index.search(z, 2)
        assert ids.tolist() == [[0, 1], [1, 0]]
        assert scores.dtype == torch.float32
        assert not scores.requires_grad
