"""Propensity-weighted BCE: positives weigh 1 / p."""

from __future__ import annotations

import torch

from xmclab_losses.bce import BinaryCrossEntropy
from xmclab_losses.pw_bce import PropensityWeightedBCE


def test_equals_the_formula(equals_cells, equals_cells_above_1, propensity_formula):
    equals_cells(PropensityWeightedBCE(), propensity_formula("pw_bce"))
    equals_cells_above_1(PropensityWeightedBCE(), propensity_formula("pw_bce"))


def test_without_missing_labels_it_is_bce():
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(3, 4), torch.rand(3, 4)
    torch.testing.assert_close(PropensityWeightedBCE().terms(s_QP, y_QP), BinaryCrossEntropy().terms(s_QP, y_QP))
