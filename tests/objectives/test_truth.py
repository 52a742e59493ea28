"""Lists of known pairs say the same as matrices, in both directions, and stay on their device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Batch, Reduction
from xmclab.objectives.reductions.pol import Pol
from xmclab.objectives.truth import Truth


def matrices(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = [int(n) for n in torch.randint(1, 7, (2,), generator=generator)]
    y_QP = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.4)
    return y_QP, torch.rand(shape, generator=generator) < 0.2


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_a_matrix_comes_back(seed: int) -> None:
    y_QP, ignore_QP = matrices(seed)
    truth = Truth.of_matrix(y_QP, ignore_QP)
    assert torch.equal(truth.matrix(torch.float32), y_QP.masked_fill(ignore_QP, 0))
    assert torch.equal(truth.transposed.matrix(torch.float32), truth.matrix(torch.float32).T)
    assert torch.equal(truth.hide_ignored(torch.zeros(y_QP.shape), 1.0) > 0, ignore_QP)
    assert torch.equal(truth.transposed.hide_ignored(torch.zeros(y_QP.T.shape), 1.0) > 0, ignore_QP.T)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_narrow_rows_hold_the_targets_of_each_anchor_from_the_left(seed: int) -> None:
    y_QP, ignore_QP = matrices(seed)
    truth = Truth.of_matrix(y_QP, ignore_QP)
    for anchors, full_AP in (
        (truth.queries, truth.matrix(torch.float32)),
        (truth.labels, truth.matrix(torch.float32).T),
    ):
        y_AM = anchors.target_AM
        assert torch.equal(y_AM.view(-1)[anchors.place_E], truth.target_E)
        for full, short in zip(full_AP[anchors.ids_A], y_AM, strict=True):
            assert short[: (full > 0).sum()].tolist() == full[full > 0].tolist()
            assert not short[(full > 0).sum() :].any()
        assert y_AM.shape[1] == max(1, int((full_AP > 0).sum(dim=1).max()))
    assert truth.labels.ids_A.tolist() == truth.matrix(torch.float32).any(dim=0).nonzero().flatten().tolist()


@dataclass
class Shown(Reduction):
    """The targets it is shown."""

    def weights(self, y_QP: torch.Tensor) -> torch.Tensor:
        return y_QP


@dataclass
class ShownDrawn(Shown):
    among = "drawn"


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_a_reduction_is_shown_all_positives_or_those_that_were_drawn(seed: int) -> None:
    y_QP, ignore_QP = matrices(seed)
    drawn_QP = torch.rand(y_QP.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    truth = Truth.of_matrix(y_QP, ignore_QP, drawn_QP)
    for reduction, shown_QP in ((Shown(), y_QP), (ShownDrawn(), y_QP * drawn_QP)):
        shown_QP = shown_QP.masked_fill(ignore_QP, 0)
        cells_E = truth.row_E * y_QP.shape[1] + truth.column_E
        assert torch.equal(truth.weigh(reduction, truth.matrix(torch.float32), cells_E), shown_QP)
        for anchors in (truth.queries, truth.labels):
            w_AM = truth.weigh(reduction, anchors.target_AM, anchors.place_E)
            assert torch.equal(w_AM.view(-1)[anchors.place_E], shown_QP[truth.row_E, truth.column_E])
            assert w_AM.count_nonzero() == shown_QP.count_nonzero()
    assert torch.equal(truth.matrix(torch.float32), y_QP.masked_fill(ignore_QP, 0))


@pytest.mark.parametrize("among", [Shown, ShownDrawn])
def test_without_draws_all_positives_are_shown(among: type[Reduction]) -> None:
    truth = Truth.of_matrix(torch.eye(3))
    assert torch.equal(truth.weigh(among(), truth.queries.target_AM, truth.queries.place_E), torch.ones(3, 1))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_everything_is_made_on_the_device(device: str) -> None:
    rows, columns = np.array([0, 1, 1]), np.array([2, 0, 1])
    positives, ignored = (rows, columns, np.ones(3, np.float32)), (np.array([0]), np.array([1]))
    truth = Truth.of_batch(Batch(np.arange(2), np.arange(3), positives, ignored, rows == 1), device)
    narrow = [truth.queries.target_AM, truth.labels.target_AM]
    made = [*narrow, truth.matrix(torch.float64), truth.transposed.matrix(torch.float32), truth.drawn_E]
    made += [truth.weigh(Pol(), anchors.target_AM, anchors.place_E) for anchors in (truth.queries, truth.labels)]
    assert {tensor.device.type for tensor in made} == {device}
    assert [tuple(x.shape) for x in narrow] == [(2, 2), (3, 1)]
