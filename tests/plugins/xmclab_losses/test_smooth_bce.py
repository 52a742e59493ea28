"""Label smoothing of binary cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

import xmclab
from xmclab_losses.smooth_bce import SmoothBCE


@pytest.mark.parametrize("e", [0.0, 0.1, 1.0])
def test_equals_the_formula(equals_cells, e):
    equals_cells(SmoothBCE(smoothing=e), lambda s, y: math.log1p(math.exp(s)) - ((1 - e) * y + e / 2) * s)


def test_equals_what_torch_makes_of_smoothed_targets():
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(4, 6, dtype=torch.float64), one_hot(torch.tensor([0, 5, 2, 2]), 6).double()
    found = xmclab.objective("smooth_bce(smoothing=0.2)", reduction="ova")(s_QP, y_QP)
    torch.testing.assert_close(found, binary_cross_entropy_with_logits(s_QP, 0.8 * y_QP + 0.1))


def test_an_absent_candidate_costs_nothing():
    s_QP, y_QP = torch.tensor([[0.3, -0.7, -math.inf]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert SmoothBCE(smoothing=0.5).terms(s_QP, y_QP)[0, 2] == 0
