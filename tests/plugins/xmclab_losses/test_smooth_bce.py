"""Label smoothing, of binary and of softmax cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

import xmclab
from xmclab_losses.smooth_bce import SmoothBCE, SmoothSoftmax


@pytest.mark.parametrize("e", [0.0, 0.1, 1.0])
def test_bce_equals_the_formula(equals_cells, e):
    equals_cells(SmoothBCE(smoothing=e), lambda s, y: math.log1p(math.exp(s)) - ((1 - e) * y + e / 2) * s)


@pytest.mark.parametrize("e", [0.0, 0.1, 1.0])
def test_softmax_equals_the_formula(equals_rows, e):
    def pair(scores: list[float], targets: list[float], p: int) -> float:
        mean = sum(scores) / len(scores)
        return math.log(sum(map(math.exp, scores))) - (1 - e) * scores[p] - e * mean

    equals_rows(SmoothSoftmax(smoothing=e), pair)


def test_equal_what_torch_makes_of_smoothed_targets():
    torch.manual_seed(0)
    s_QP, target_Q = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 5, 2, 2])
    y_QP = one_hot(target_Q, 6).double()
    found = xmclab.objective("smooth_softmax(smoothing=0.2)")(s_QP, y_QP)
    torch.testing.assert_close(found, cross_entropy(s_QP, target_Q, label_smoothing=0.2))
    found = xmclab.objective("smooth_bce(smoothing=0.2)", reduction="ova")(s_QP, y_QP)
    torch.testing.assert_close(found, binary_cross_entropy_with_logits(s_QP, 0.8 * y_QP + 0.1))


def test_soft_targets_need_no_loss_of_their_own():
    torch.manual_seed(1)
    s_QP, y_QP = torch.randn(3, 5, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)
    distribution_QP = y_QP / y_QP.sum(dim=1, keepdim=True)
    torch.testing.assert_close(xmclab.objective("supcon")(s_QP, y_QP), cross_entropy(s_QP, distribution_QP))


def test_an_absent_candidate_has_no_share_of_the_smoothing():
    s_QP = torch.tensor([[0.3, -0.7, -math.inf]])
    y_QP = torch.tensor([[1.0, 0.0, 0.0]])
    assert SmoothBCE(smoothing=0.5).terms(s_QP, y_QP)[0, 2] == 0
    found = SmoothSoftmax(smoothing=0.5).terms(s_QP, y_QP)[0, 0]
    assert torch.equal(found, SmoothSoftmax(smoothing=0.5).terms(s_QP[:, :2], y_QP[:, :2])[0, 0])
