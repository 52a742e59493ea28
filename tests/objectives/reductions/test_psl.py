"""Pick some labels: the weights of `pal_n`, on the pool."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab.objectives import Objective, Term, divisor
from xmclab.objectives.reductions.pal_n import PalN
from xmclab.objectives.reductions.psl import Psl
from xmclab_losses.ds import DecoupledSoftmax


def test_positives_in_the_pool_share_a_total_of_one_by_their_targets():
    y_QP = torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.2, 0.0], [0.0, 0.0, 0.0]])
    w_QP = Psl().weights(y_QP)
    assert w_QP.tolist() == [[0.5, 0.25, 0.25], [0, 1, 0], [0, 0, 0]]
    assert divisor(Term("any", 1.0, DecoupledSoftmax(), Psl()), w_QP) == 2


def by_loops(s: list[list[float]], y: list[list[float]]) -> list[float]:
    """Of each anchor with a positive, the mean over its positives of `ds`."""
    rows = []
    for scores, targets in zip(s, y, strict=True):
        losses = []
        for p, target in enumerate(targets):
            if target > 0:
                others = sum(math.exp(score) for score, t in zip(scores, targets, strict=True) if t == 0)
                losses.append(math.log(math.exp(scores[p]) + others) - scores[p])
        if losses:
            rows.append(sum(losses) / len(losses))
    return rows


def test_it_takes_multiclass_losses_on_the_pool():
    assert (Psl.accepts, Psl.needs) == ("multiclass", "pool")


@pytest.mark.parametrize("reduction", [Psl, PalN])
@pytest.mark.parametrize("q2l_share", [1.0, 0.5, 0.0])
def test_the_sum_over_anchors_is_that_of_a_double_loop(reduction, q2l_share):
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(5, 7, dtype=torch.float64), (torch.rand(5, 7) < 0.3).double()
    y_QP[2], y_QP[3] = 0, 1
    values = {}
    for anchors in ("mean", "sum"):
        objective = Objective([Term("ds", 1.0, DecoupledSoftmax(), reduction(anchors=anchors))], q2l_share=q2l_share)
        values[anchors] = float(objective(s_QP, y_QP))
    sums = [by_loops(s_QP.tolist(), y_QP.tolist()), by_loops(s_QP.T.tolist(), y_QP.T.tolist())]
    shares = (q2l_share, 1 - q2l_share)
    assert values["sum"] == pytest.approx(sum(share * sum(rows) for share, rows in zip(shares, sums, strict=True)))
    means = [sum(rows) / len(rows) for rows in sums]
    assert values["mean"] == pytest.approx(sum(share * mean for share, mean in zip(shares, means, strict=True)))
