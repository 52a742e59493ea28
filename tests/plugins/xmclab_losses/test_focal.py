"""Focal loss: cells weighted by how wrong they are."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab_losses.bce import BinaryCrossEntropy
from xmclab_losses.focal import Focal


def naive(gamma: float, alpha: float):
    def cell(s: float, y: float) -> float:
        p = 1 / (1 + math.exp(-s))
        positive, negative = -((1 - p) ** gamma) * math.log(p), -(p**gamma) * math.log(1 - p)
        return y * alpha * positive + (1 - y) * (1 - alpha) * negative

    return cell


@pytest.mark.parametrize(("gamma", "alpha"), [(2.0, 0.25), (0.0, 0.5), (0.5, 1.0), (1.0, 0.0)])
def test_equals_the_formula(equals_cells, gamma, alpha):
    equals_cells(Focal(gamma=gamma, alpha=alpha), naive(gamma, alpha))


def test_without_focus_it_is_half_of_bce():
    s_QP = torch.tensor([[-60.0, -3.0, 0.0, 2.0, 60.0, -torch.inf]])
    y_QP = torch.tensor([[1.0, 0.3, 0.0, 1.0, 0.0, 0.0]])
    bce = BinaryCrossEntropy().terms(s_QP, y_QP)
    torch.testing.assert_close(2 * Focal(gamma=0.0, alpha=0.5).terms(s_QP, y_QP), bce)
