"""Losses that list triplets say how much memory that is before they allocate it, and refuse above a limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xmclab.api import Loss
from xmclab.errors import MemoryLimitError
from xmclab.host.registry import default_registry
from xmclab_pml.losses import BYTES_PER_TRIPLET, GIB, WORTH_SAYING
from xmclab_pml.pairs import Table

QUERIES, LABELS, POSITIVES = 20, 50, 3
TRIPLETS = QUERIES * POSITIVES * (LABELS - POSITIVES)
NEEDED = BYTES_PER_TRIPLET * TRIPLETS / GIB
LISTING = ["LiftedStructureLoss", "MarginLoss", "NTXentLoss", "TripletMarginLoss", "TupletMarginLoss"]


def part(name: str, **options: Any) -> Loss:
    loss: Loss = default_registry().get("loss", f"pml.{name}")(**options)
    return loss


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    s_QP = torch.rand(QUERIES, LABELS) - 0.5
    return s_QP, torch.zeros(QUERIES, LABELS).scatter(1, torch.rand(QUERIES, LABELS).topk(POSITIVES).indices, 1)


def test_much_memory_is_said_once_with_the_number(batch: tuple[Tensor, Tensor], caplog: Any) -> None:
    loss = part("TripletMarginLoss", memory_limit=1.5 * NEEDED)
    loss.terms(*batch)
    loss.terms(*batch)
    assert [record.getMessage() for record in caplog.records] == [
        f"loss pml.TripletMarginLoss: {TRIPLETS:,} triplets: {NEEDED:.2g} GiB"
    ]


def test_little_memory_is_not_worth_saying(batch: tuple[Tensor, Tensor], caplog: Any) -> None:
    part("TripletMarginLoss", memory_limit=1.1 * NEEDED / WORTH_SAYING).terms(*batch)
    assert caplog.records == []


@pytest.mark.parametrize("name", LISTING)
def test_too_much_memory_is_refused_before_it_is_taken(
    name: str, batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = part(name, memory_limit=1e-6)
    for method in ("compute_loss", "loss_method"):
        monkeypatch.setattr(type(loss).theirs, method, lambda *_: pytest.fail("it was called"), raising=False)
    with pytest.raises(MemoryLimitError, match=r"GiB exceeds its memory_limit of 1e-06 GiB .*lower sampler.batch_size"):
        loss.terms(*batch)


def test_a_miner_of_all_triplets_is_refused_too(batch: tuple[Tensor, Tensor]) -> None:
    loss = part("SupConLoss", memory_limit=NEEDED, miner="TripletMarginMiner")
    with pytest.raises(MemoryLimitError, match=f"its miner lists {TRIPLETS:,} triplets"):
        loss.terms(*batch)
    part("SupConLoss", memory_limit=1e-9, miner="MultiSimilarityMiner").terms(*batch)


def test_the_number_covers_what_the_gradient_keeps(batch: tuple[Tensor, Tensor]) -> None:
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    s_QP, y_QP = batch
    loss = part("TripletMarginLoss")
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        value_QP = loss.terms(s_QP.requires_grad_(), y_QP)
    assert value_QP.requires_grad
    assert 20 * TRIPLETS <= sum(kept.values()) <= BYTES_PER_TRIPLET * TRIPLETS


def test_triplets_are_each_positive_with_each_negative(batch: tuple[Tensor, Tensor]) -> None:
    _, y_QP = batch
    table = Table.of(*batch)
    expected = {
        (a, p, n) for a in range(QUERIES) for p in range(LABELS) for n in range(LABELS) if y_QP[a, p] and not y_QP[a, n]
    }
    found = list(zip(*(x.tolist() for x in table.triplets), strict=True))
    assert len(found) == table.num_triplets == len(expected)
    assert set(found) == expected


def test_some_triplets_are_drawn_in_place_of_all(batch: tuple[Tensor, Tensor]) -> None:
    loss = part("TripletMarginLoss", triplets_per_anchor=5, margin=2.0)
    with pytest.raises(MemoryLimitError, match=r"draw some with triplets_per_anchor="):
        part("TripletMarginLoss", memory_limit=NEEDED / 2).terms(*batch)
    torch.manual_seed(1)
    first = loss.terms(*batch)
    torch.manual_seed(1)
    assert torch.equal(first, loss.terms(*batch))
    assert not torch.equal(first, loss.terms(*batch))
    a, p, n = Table.of(*batch).drawn_triplets(5)
    assert len(a) == 5 * QUERIES
    assert batch[1][a, p].all()
    assert not batch[1][a, n].any()
    assert len(Table.of(batch[0], torch.zeros_like(batch[1])).drawn_triplets(5)[0]) == 0


def test_pairings_are_those_of_few_anchors_at_a_time(batch: tuple[Tensor, Tensor], monkeypatch: Any) -> None:
    """However many anchors are asked at a time, their values are the same."""
    s_QP, y_QP = batch
    values = []
    for pairings in (1, 1000, 10**9):
        monkeypatch.setattr("xmclab_pml.losses.PAIRINGS_OF_A_CALL", pairings)
        values.append(part("LiftedStructureLoss").terms(s_QP, y_QP))
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


@pytest.mark.parametrize(
    "loss",
    [
        "pml.SupConLoss(temperature=0.1)",
        "0.5*pml.TripletMarginLoss(triplets_per_anchor=20)+pml.ContrastiveLoss",
        "pml.MultiSimilarityLoss(miner='MultiSimilarityMiner(epsilon=0.2)')",
    ],
)
def test_a_run_trains_with_it(loss: str, train: Callable[..., Path], tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "recipe=unidec", "head.clf=none", "head.de.dim=16", f"loss.de={loss}")
    assert (folder / "result.json").is_file()
