"""One versus all, normalised: targets of a query are divided by its number of positives."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.reductions.ova_n import OvaN
from xmclab_losses.bce import BinaryCrossEntropy

Y_QP = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)


def test_targets_are_divided_by_the_number_of_positives():
    assert OvaN().targets(Y_QP).tolist() == [[0.5, 0.5, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(("cells", "count"), [("mean", 12), ("sum", 1)])
def test_positive_and_negative_parts_carry_the_weights_of_the_reduction(cells, count):
    s_QP = torch.randn(3, 4, dtype=torch.float64)
    total = 0.0
    for i in range(3):
        positives = sum(y > 0 for y in Y_QP[i].tolist())
        for s, y in zip(s_QP[i].tolist(), Y_QP[i].tolist(), strict=True):
            share = y / max(positives, 1)
            total += share * math.log1p(math.exp(-s)) + (1 - share) * math.log1p(math.exp(s))
    objective = Objective([Term("bce", 1.0, BinaryCrossEntropy(), OvaN(cells=cells))])
    assert float(objective(s_QP, Y_QP)) == pytest.approx(total / count, abs=1e-12)


def test_it_takes_binary_losses_on_all_labels():
    assert (OvaN.accepts, OvaN.needs) == ("binary", "all")
