"""Unbiased BCE: the convex stand-in, and the estimate itself."""

from __future__ import annotations

import pytest
import torch

from xmclab_losses.bce import BinaryCrossEntropy
from xmclab_losses.unbiased_bce import UnbiasedBCE

FORMS = {"unbiased_bce": UnbiasedBCE(), "unbiased_bce(form='exact')": UnbiasedBCE(form="exact")}
each_form = pytest.mark.parametrize("name", FORMS)


@each_form
def test_equals_the_formula(name, equals_cells, equals_cells_above_1, propensity_formula):
    equals_cells(FORMS[name], propensity_formula(name))
    equals_cells_above_1(FORMS[name], propensity_formula(name))


@each_form
def test_without_missing_labels_it_is_bce(name):
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(3, 4), torch.rand(3, 4)
    torch.testing.assert_close(FORMS[name].terms(s_QP, y_QP), BinaryCrossEntropy().terms(s_QP, y_QP))


def test_the_mean_of_the_exact_form_over_what_is_marked_is_bce_of_complete_labels():
    s_QP, p_QP = torch.meshgrid(torch.linspace(-3, 3, 7), torch.tensor([0.1, 0.5, 1.0]), indexing="ij")
    loss = UnbiasedBCE(form="exact")
    mean_QP = p_QP * loss.terms(s_QP, 1 / p_QP) + (1 - p_QP) * loss.terms(s_QP, torch.zeros_like(s_QP))
    torch.testing.assert_close(mean_QP, BinaryCrossEntropy().terms(s_QP, torch.ones_like(s_QP)))
