"""Squared hinge: nothing to gain beyond the margin."""

from __future__ import annotations

import torch

from xmclab_losses.squared_hinge import SquaredHinge


def test_equals_the_formula(equals_cells):
    equals_cells(SquaredHinge(), lambda s, y: y * max(0, 1 - s) ** 2 + (1 - y) * max(0, 1 + s) ** 2)


def test_cells_right_by_the_margin_have_no_gradient():
    s_QP = torch.tensor([[1.5, -1.5, 0.0]], requires_grad=True)
    SquaredHinge().terms(s_QP, torch.tensor([[1.0, 0.0, 1.0]])).sum().backward()
    assert s_QP.grad.tolist() == [[0.0, 0.0, -2.0]]
