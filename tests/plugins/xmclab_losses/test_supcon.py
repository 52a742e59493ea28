"""Supervised contrastive loss: every candidate stands in the denominator."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy, one_hot

import xmclab
from xmclab_losses.supcon import SupCon


def test_equals_the_formula():
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(5, 7, dtype=torch.float64), (torch.rand(5, 7) < 0.4).double()
    expected = [[math.log(sum(map(math.exp, row))) - s for s in row] for row in s_QP.tolist()]
    expected_QP = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(SupCon().terms(s_QP, y_QP), expected_QP, rtol=0, atol=1e-12)


def test_equals_cross_entropy_for_one_positive():
    torch.manual_seed(1)
    s_QP, target_Q = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 5, 2, 2])
    y_QP = one_hot(target_Q, 6).double()
    expected_Q = cross_entropy(s_QP, target_Q, reduction="none")
    torch.testing.assert_close(SupCon().terms(s_QP, y_QP)[y_QP > 0], expected_Q)


def test_one_candidate_costs_nothing():
    assert SupCon().terms(torch.tensor([[5.0], [-1e4]]), torch.ones(2, 1)).tolist() == [[0.0], [0.0]]


def test_soft_targets_make_it_the_cross_entropy_with_a_soft_distribution():
    torch.manual_seed(1)
    s_QP, y_QP = torch.randn(3, 5, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)
    distribution_QP = y_QP / y_QP.sum(dim=1, keepdim=True)
    torch.testing.assert_close(xmclab.objective("supcon")(s_QP, y_QP), cross_entropy(s_QP, distribution_QP))
