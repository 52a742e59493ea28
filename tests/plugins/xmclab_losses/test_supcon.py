"""SupCon and softmax: every candidate stands in the denominator."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab_losses.supcon import Softmax, SupCon


@pytest.mark.parametrize("loss", [SupCon(), Softmax()])
def test_equals_the_formula(loss):
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(5, 7, dtype=torch.float64), (torch.rand(5, 7) < 0.4).double()
    expected = [[math.log(sum(map(math.exp, row))) - s for s in row] for row in s_QP.tolist()]
    expected_QP = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(loss.terms(s_QP, y_QP), expected_QP, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", [SupCon(), Softmax()])
def test_equals_cross_entropy_for_one_positive(loss):
    torch.manual_seed(1)
    s_QP, target_Q = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 5, 2, 2])
    y_QP = torch.nn.functional.one_hot(target_Q, 6).double()
    expected_Q = torch.nn.functional.cross_entropy(s_QP, target_Q, reduction="none")
    torch.testing.assert_close(loss.terms(s_QP, y_QP)[y_QP > 0], expected_Q)


def test_one_candidate_costs_nothing():
    assert SupCon().terms(torch.tensor([[5.0], [-1e4]]), torch.ones(2, 1)).tolist() == [[0.0], [0.0]]
