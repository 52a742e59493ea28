"""Objectives: summed over terms and directions, on any scores, with ignored pairs and weights of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import xmclab
from xmclab.api import BinaryLoss, MultiClassLoss
from xmclab.errors import PluginError
from xmclab.host.registry import default_registry
from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.reductions.ova import Ova
from xmclab.objectives.reductions.psl import Psl
from xmclab.objectives.truth import Truth
from xmclab_losses.supcon import SupCon


def test_a_temperature_is_the_losss_own_else_the_objectives_else_one(batch):
    s_QP, y_QP = batch
    found = xmclab.objective("supcon(temperature=0.1)+bce", temperature=0.5)(s_QP, y_QP)
    expected = xmclab.objective("supcon")(s_QP / 0.1, y_QP) + xmclab.objective("bce")(s_QP / 0.5, y_QP)
    torch.testing.assert_close(found, expected)


def test_symmetric_is_the_mean_of_both_directions_and_bce_has_none(batch):
    s_QP, y_QP = batch
    ds, bce = xmclab.objective("ds"), xmclab.objective("bce")
    symmetric = xmclab.objective("ds+bce", symmetric=True)(s_QP, y_QP)
    torch.testing.assert_close(symmetric, (ds(s_QP, y_QP) + ds(s_QP.T, y_QP.T)) / 2 + bce(s_QP, y_QP))
    mixed = xmclab.objective("ds", q2l_share=0.3)(s_QP, y_QP)
    torch.testing.assert_close(mixed, 0.3 * ds(s_QP, y_QP) + 0.7 * ds(s_QP.T, y_QP.T))


def test_values_name_every_term_and_direction_and_add_up(batch):
    objective = xmclab.objective("0.5*ds+2*bce", q2l_share=0.25)
    truth = Truth.of_matrix(batch[1])
    values = objective.evaluate(batch[0], truth).values
    assert list(values) == ["ds/q2l", "ds/l2q", "bce/cells"]
    factors = 0.5 * 0.25, 0.5 * 0.75, 2.0
    total = sum(factor * value for factor, value in zip(factors, values.values(), strict=True))
    torch.testing.assert_close(total, objective(*batch))
    assert list(xmclab.objective("ds").evaluate(batch[0], truth).values) == ["ds/q2l"]
    assert list(xmclab.objective("ds", q2l_share=0.0).evaluate(batch[0], truth).values) == ["ds/l2q"]


@pytest.mark.parametrize(
    ("expression", "reduction", "needs_all"),
    [
        ("ds+bce", "psl", False),
        ("ds", "pol", False),
        ("bce", "psl", False),
        ("ds", "pal", True),
        ("ds", "pal_n", True),
        ("bce", "ova", True),
        ("ds+ova_n(bce)", "psl", True),
        ("psl(ds)+bce", "ova", True),
    ],
)
def test_needs_all_labels_if_any_term_does(expression, reduction, needs_all):
    assert xmclab.objective(expression, reduction=reduction).needs_all is needs_all


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("positives", [torch.bool, torch.int64, torch.float16, torch.float32, torch.float64])
def test_any_float_scores_and_any_positives(batch, dtype, positives):
    s_QP, y_QP = batch
    objective = xmclab.objective("ds+bce", symmetric=True)
    value = objective(s_QP.to(dtype), y_QP.to(positives))
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(value, objective(s_QP.to(dtype).to(value.dtype), y_QP))


@pytest.mark.parametrize("reduction", ["pol", "pal", "pal_n", "psl"])
def test_every_tensor_is_made_on_the_device_of_the_scores(reduction):
    s_QP = torch.empty(3, 4, device="meta", requires_grad=True)
    three = np.arange(3)
    truth = Truth.of_lists((3, 4), (three, three, np.ones(3, np.float32)), (three, three), "meta")
    for weight_P in (None, torch.empty(4, device="meta")):
        for expression in ("ds+supcon+bce", "ova_n(bce)"):
            s_QP.grad = None
            objective = xmclab.objective(expression, reduction, symmetric=True)
            objective.evaluate(s_QP, truth, weight_P).total.backward()
            assert s_QP.grad.device.type == "meta"


def test_label_weights_scale_pairs_and_not_the_number_of_anchors(batch):
    s_QP, _ = batch
    y_QP = torch.eye(5, 7, dtype=torch.bool)
    weight_P = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    rows_Q = cross_entropy(s_QP, torch.arange(5), reduction="none")
    found = xmclab.objective("supcon")(s_QP, y_QP, label_weight_P=weight_P)
    torch.testing.assert_close(found, (rows_Q * weight_P[:5]).sum() / 5)
    columns_P = cross_entropy(s_QP.T[:5], torch.arange(5), reduction="none")
    found = xmclab.objective("supcon", q2l_share=0.0)(s_QP, y_QP, label_weight_P=weight_P)
    torch.testing.assert_close(found, (columns_P * weight_P[:5]).sum() / 5)


def test_an_ignored_positive_is_no_positive(batch):
    s_QP, y_QP = batch
    ignore_QP = torch.rand(5, 7) < 0.3
    for expression in ("ds", "supcon", "bce", "ova_n(bce)"):
        objective = xmclab.objective(expression, symmetric=True)
        with_positives = objective(s_QP, y_QP | ignore_QP, ignore_QP=ignore_QP)
        assert torch.equal(with_positives, objective(s_QP, y_QP & ~ignore_QP, ignore_QP=ignore_QP))


@dataclass
class Logarithm(BinaryLoss):
    """Not finite, in value and gradient, for scores of 0 or less."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return (s_QP + 1).log()


def test_ignored_cells_of_a_binary_loss_give_exactly_nothing():
    s_QP = torch.tensor([[1.0, -1.0], [-5.0, 3.0]], requires_grad=True)
    ignore_QP = torch.tensor([[False, True], [True, False]])
    value = Objective([Term("log", 1.0, Logarithm(), Ova())])(s_QP, torch.zeros(2, 2), ignore_QP=ignore_QP)
    value.backward()
    assert float(value.detach()) == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert s_QP.grad.tolist() == [[0.25, 0.0], [0.0, 0.125]]


def test_labels_of_weight_zero_give_a_binary_loss_exactly_nothing():
    s_QP = torch.tensor([[1.0, -1.0], [3.0, -1.0]], requires_grad=True)
    objective = Objective([Term("log", 1.0, Logarithm(), Ova())])
    value = objective(s_QP, torch.zeros(2, 2), label_weight_P=torch.tensor([1.0, 0.0]))
    value.backward()
    assert float(value.detach()) == pytest.approx((math.log(2) + math.log(4)) / 4)
    assert s_QP.grad.tolist() == [[0.125, 0.0], [0.0625, 0.0]]


def test_pairs_without_weight_give_exactly_nothing_even_if_infinite(batch, only_positives):
    s_QP, y_QP = batch
    value = Objective([Term("mine", 1.0, only_positives(), Psl())], q2l_share=0.5)(s_QP.requires_grad_(), y_QP)
    torch.testing.assert_close(value, xmclab.objective("supcon", symmetric=True)(s_QP, y_QP))
    (gradient_QP,) = torch.autograd.grad(value, s_QP)
    assert torch.isfinite(gradient_QP).all()


def test_inputs_are_left_as_they_were(batch):
    s_QP, y_QP = batch
    before = s_QP.clone(), y_QP.clone()
    xmclab.objective("ds+bce", symmetric=True)(s_QP, y_QP, ignore_QP=torch.rand(5, 7) < 0.5)
    assert torch.equal(s_QP, before[0])
    assert torch.equal(y_QP, before[1])


@pytest.mark.parametrize(
    ("scores", "positives", "more", "reason"),
    [
        (torch.zeros(3), torch.zeros(3), {}, "float matrix"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), {}, "float matrix"),
        (torch.zeros(2, 3), torch.zeros(2, 1), {}, "positives"),
        (torch.zeros(2, 3), torch.zeros(2, 3), {"ignore_QP": torch.zeros(1, 3, dtype=torch.bool)}, "ignore"),
        (torch.zeros(2, 3), torch.zeros(2, 3), {"drawn_QP": torch.zeros(2, 1, dtype=torch.bool)}, "drawn"),
        (torch.zeros(2, 3), torch.zeros(2, 3), {"label_weight_P": torch.ones(2)}, "label weights"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(scores, positives, more, reason):
    with pytest.raises(ValueError, match=reason):
        xmclab.objective("ds")(scores, positives, **more)


@dataclass
class Doubled(SupCon):
    """A subclass that replaces the pair value only."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return 2 * super().terms(s_QP, y_QP)


def test_a_subclass_with_its_own_terms_does_not_inherit_the_closed_form(batch):
    assert SupCon().has_closed_form
    assert not Doubled().has_closed_form
    doubled = Objective([Term("doubled", 1.0, Doubled(), Psl())])(*batch)
    torch.testing.assert_close(doubled, 2 * xmclab.objective("supcon")(*batch))


@dataclass
class Halved(Ova):
    def weights(self, y_QP: Tensor) -> Tensor:
        return 0.5 * super().weights(y_QP)


def test_a_binary_reduction_with_weights_of_its_own_is_heard(batch):
    bce = default_registry().get("loss", "bce")()
    halved = Objective([Term("bce", 1.0, bce, Halved())])(*batch)
    torch.testing.assert_close(halved, 0.5 * xmclab.objective("bce")(*batch))


def test_a_term_of_weight_zero_is_reported_and_adds_nothing(batch):
    s_QP, y_QP = batch
    evaluation = xmclab.objective("0*ds+bce").evaluate(s_QP.requires_grad_(), Truth.of_matrix(y_QP))
    assert float(evaluation.values["ds/q2l"]) == pytest.approx(float(xmclab.objective("ds")(s_QP.detach(), y_QP)))
    (gradient,) = torch.autograd.grad(evaluation.total, s_QP)
    (expected,) = torch.autograd.grad(xmclab.objective("bce")(s_QP, y_QP), s_QP)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_empty_matrix_has_value_zero(shape):
    s_QP = torch.zeros(shape, requires_grad=True)
    value = xmclab.objective("ds+bce", symmetric=True)(s_QP, torch.zeros(shape))
    value.backward()
    assert float(value.detach()) == 0.0


@pytest.mark.parametrize("shrink", [Tensor.mean, lambda x: x.mean(dim=1), lambda x: x.mean(dim=1, keepdim=True)])
def test_a_loss_that_averages_by_itself_is_refused(batch, shrink):
    @dataclass
    class Averaged(MultiClassLoss):
        def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
            return shrink(s_QP)

    with pytest.raises(PluginError, match="leave sums and averages to the reduction") as caught:
        Objective([Term("mine", 1.0, Averaged(), Psl())])(*batch)
    assert caught.value.exit_code == 4
    assert "'mine'" in str(caught.value)


@dataclass
class Sensitive(MultiClassLoss):
    """Has products, which autocast would round."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        assert not torch.is_autocast_enabled(s_QP.device.type)
        return s_QP.exp() @ s_QP.new_ones(s_QP.shape[1], s_QP.shape[1]) - s_QP


def test_a_loss_is_computed_without_autocast(batch):
    s_QP, y_QP = batch[0].float(), batch[1].float()
    objective = Objective([Term("sensitive", 1.0, Sensitive(), Psl())])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = objective(s_QP, y_QP)
    torch.testing.assert_close(found, objective(s_QP, y_QP), rtol=0, atol=0)
