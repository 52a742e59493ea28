"""A loss against its formula written down for one pair, in Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from xmclab.api import BinaryLoss, Loss, MultiClassLoss
from xmclab.objectives.softmax import sum_of_negatives

Formula = Callable[[float, float], float]  # (score, target) to the value of a cell
RowFormula = Callable[[list[float], list[float], int], float]  # (scores, targets, positive) to the value of a pair


@pytest.fixture
def equals_cells() -> Callable[[BinaryLoss, Formula], None]:
    """A binary loss has the formula's values, their slopes, and the same in closed form."""

    def check(loss: BinaryLoss, formula: Formula) -> None:
        torch.manual_seed(0)
        s_QP = 2 * torch.randn(5, 8, dtype=torch.float64)
        y_QP = torch.rand(5, 8, dtype=torch.float64).masked_fill(torch.rand(5, 8) < 0.5, 0)
        y_QP[0], y_QP[1] = 0, 1
        cells = zip(s_QP.flatten().tolist(), y_QP.flatten().tolist(), strict=True)
        expected_QP = torch.tensor([formula(s, y) for s, y in cells], dtype=torch.float64).view_as(s_QP)
        torch.testing.assert_close(loss.terms(s_QP, y_QP), expected_QP, rtol=1e-10, atol=1e-12)
        assert torch.autograd.gradcheck(lambda s: loss.terms(s, y_QP), s_QP.clone().requires_grad_())

        leaf_QP = s_QP.clone().requires_grad_()
        value = loss.terms(leaf_QP, torch.zeros_like(s_QP)).sum()
        (gradient_QP,) = torch.autograd.grad(value, leaf_QP)
        absent_QP = torch.cat([s_QP, torch.full((5, 1), -math.inf, dtype=torch.float64)], dim=1)
        closed_value, closed_gradient_QP = sum_of_negatives(loss, absent_QP)
        assert loss.has_closed_form
        torch.testing.assert_close(closed_value, value.detach())
        torch.testing.assert_close(closed_gradient_QP[:, :-1], gradient_QP)
        assert (closed_gradient_QP[:, -1] == 0).all()

    return check


@pytest.fixture
def equals_cells_above_1() -> Callable[[BinaryLoss, Formula], None]:
    """A loss of targets that were divided by propensities has the formula's values where they exceed 1, too."""

    def check(loss: BinaryLoss, formula: Formula) -> None:
        s_QP, t_QP = torch.meshgrid(torch.linspace(-3, 3, 5), torch.linspace(0, 9, 7), indexing="ij")
        cells = zip(s_QP.flatten().tolist(), t_QP.flatten().tolist(), strict=True)
        expected_QP = torch.tensor([formula(s, t) for s, t in cells]).view_as(s_QP)
        torch.testing.assert_close(loss.terms(s_QP, t_QP), expected_QP)

    return check


@pytest.fixture
def propensity_formula() -> Callable[[str], Formula]:
    """The formula of a loss for missing labels by its name; its targets are t = y / p."""

    def formula(name: str) -> Formula:
        def cell(s: float, t: float) -> float:
            positive = max(t, 2 * t - 1) if name == "unbiased_bce" else t
            negative = 1 - t if "exact" in name else max(1 - t, 0)
            return positive * math.log1p(math.exp(-s)) + negative * math.log1p(math.exp(s))

        return cell

    return formula


@pytest.fixture
def equals_rows() -> Callable[[MultiClassLoss, RowFormula], None]:
    """A multi-class loss has the formula's values at the positives, and their slopes."""

    def check(loss: MultiClassLoss, formula: RowFormula) -> None:
        torch.manual_seed(0)
        s_QP, y_QP = torch.randn(6, 9, dtype=torch.float64), (torch.rand(6, 9) < 0.4).double()
        y_QP[0], y_QP[1] = 1, torch.eye(9)[4]
        l_QP = loss.terms(s_QP, y_QP)
        for i, p in y_QP.nonzero().tolist():
            expected = formula(s_QP[i].tolist(), y_QP[i].tolist(), p)
            assert float(l_QP[i, p]) == pytest.approx(expected, rel=1e-10, abs=1e-12), (i, p)
        assert torch.autograd.gradcheck(lambda s: loss.terms(s, y_QP)[y_QP > 0], s_QP.requires_grad_())

    return check


def by_terms(loss: Loss) -> Loss:
    """The same loss without its closed form."""
    cls = type(loss)
    return type(cls.__name__, (cls,), {"terms": cls.terms})(**vars(loss))


@pytest.fixture(name="by_terms")
def by_terms_fixture() -> Callable[[Loss], Loss]:
    return by_terms
