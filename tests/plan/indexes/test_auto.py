"""`auto`: sizes and device decide, lists reach their recall or give way to exact search."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from xmclab.plan.indexes import auto
from xmclab.plan.indexes.auto import Auto
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import FEWEST_PROBES, Faiss

EXACT = {"name": "exact", "options": {}, "recall": 1.0}


def mixture(rows: int, seed: int) -> torch.Tensor:
    """Vectors around 50 common centres, as those of a trained model are."""
    centres, rng = np.random.default_rng(0).normal(size=(50, 16)), np.random.default_rng(seed)
    return torch.from_numpy((centres[rng.integers(50, size=rows)] + rng.normal(size=(rows, 16))).astype("f4"))


def tuned(queries: torch.Tensor, labels: torch.Tensor, **options: Any) -> Auto:
    index = Auto(**options)
    index.build(labels)
    index.tune(queries, np.random.default_rng(0))
    return index


@pytest.mark.parametrize(("queries", "labels", "name"), [(99, 200, "exact"), (200, 99, "exact"), (100, 100, "faiss")])
def test_sizes_decide(queries: int, labels: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 100)
    assert tuned(mixture(queries, 1), mixture(labels, 2), recall=0.0).report()["name"] == name


def test_a_few_thousand_queries_are_compared_with_every_label() -> None:
    q, z = torch.ones(5000, 1), torch.ones(1_000_000, 1)
    assert tuned(q, z).report() == EXACT


@pytest.mark.parametrize("recall", [0.0, 0.9, 0.99, 1.0])
def test_the_recall_is_reached_with_the_fewest_probes_and_reported(
    recall: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 0)
    monkeypatch.setattr(auto, "PAYS_UP_TO", 1.0)
    monkeypatch.setattr(auto, "SAMPLE", 300)
    q, z = mixture(300, 1), mixture(4000, 2)
    index, exact = tuned(q, z, recall=recall), Exact()
    exact.build(z)
    nearest = exact.search(q, 30)[0]

    def recall_of(found: torch.Tensor) -> float:
        return float((nearest[:, :, None] == found[:, None, :]).any(dim=2).double().mean())

    report = index.report()
    assert (report["name"], report["options"]["type"]) == ("faiss", "ivf")
    assert recall_of(index.search(q, 30)[0]) == pytest.approx(report["recall"], abs=1e-12)
    assert report["recall"] >= recall
    assert (report["options"]["probes"] == FEWEST_PROBES) == (recall == 0)
    fewer = Faiss(**{**report["options"], "probes": report["options"]["probes"] - 1})
    fewer.build(z)
    assert recall_of(fewer.search(q, 30)[0]) < (recall or 1)


def test_lists_that_do_not_pay_give_way_to_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 0)
    q, z = torch.randn(200, 32), torch.randn(2000, 32)  # nothing is near anything
    index, exact = tuned(q, z), Exact()
    exact.build(z)
    assert index.report() == EXACT
    assert torch.equal(index.search(q, 5)[0], exact.search(q, 5)[0])


def test_without_faiss_the_search_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 0)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert tuned(mixture(50, 1), mixture(500, 2), recall=0.0).report() == EXACT


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    device = torch.device("cuda")


def test_on_an_accelerator_the_search_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 0)
    index = tuned(mixture(50, 1), mixture(500, 2).as_subclass(OnGpu), recall=0.0)
    assert index.report() == EXACT
    assert index.shares_products


def test_what_is_shared_is_what_the_chosen_index_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 100)
    q, z = mixture(100, 1), mixture(200, 2)
    assert not tuned(q[:9], z).shares_products  # exact, on a CPU
    assert not tuned(q, z, recall=0.0).shares_products  # lists
    index, exact = tuned(q[:9], z), Exact(shortlist="float16")
    exact.build(z)
    index._index = exact
    assert index.shares_products
    for (ids, scores), (expected, expected_scores) in zip(
        index.search_parts(q, [10, 6], 3), exact.search_parts(q, [10, 6], 3), strict=True
    ):
        assert torch.equal(ids, expected)
        assert torch.equal(scores, expected_scores)


def test_the_choice_depends_on_the_vectors_and_the_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 0)
    monkeypatch.setattr(auto, "PAYS_UP_TO", 1.0)
    q, z = mixture(900, 1), mixture(4000, 2)
    assert tuned(q, z).report() == tuned(q, z).report()


def test_building_again_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LISTS_FROM", 100)
    index = tuned(mixture(100, 1), mixture(100, 2), recall=0.0)
    index.build(torch.eye(3))
    assert index.report() == EXACT
    assert index.search(torch.eye(3), 1)[0].flatten().tolist() == [0, 1, 2]
