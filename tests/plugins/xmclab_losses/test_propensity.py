"""Missing labels: targets are divided by propensities, on every way from the labels to the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import xmclab
from xmclab.api import Batch, Pairs
from xmclab.model.heads.classifier import Classifier
from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.reductions.pal_n import PalN
from xmclab.objectives.truth import Truth
from xmclab.training.streaming import all_labels
from xmclab_losses.ds import DecoupledSoftmax

each_loss = pytest.mark.parametrize("name", ["pw_bce", "unbiased_bce", "unbiased_bce(form='exact')"])


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(4, 5, dtype=torch.float64), (torch.rand(4, 5) < 0.5).double()
    y_QP[0], y_QP[1, 2] = 0, 0.6
    return s_QP, y_QP, torch.tensor([1.0, 1.5, 2.0, 4.0, 10.0], dtype=torch.float64)


@each_loss
@pytest.mark.parametrize("reduction", ["ova", "ova_n", "psl"])
@pytest.mark.parametrize("weighing", [False, True])
def test_the_objective_divides_targets_by_propensities(name, reduction, weighing, batch, propensity_formula):
    s_QP, y_QP, inverse_P = batch
    weight_P = torch.tensor([1.0, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64) if weighing else None
    expected, cell = 0.0, propensity_formula(name)
    for i, row in enumerate(y_QP.tolist()):
        number = max(sum(y > 0 for y in row), 1) if reduction == "ova_n" else 1
        for j, y in enumerate(row):
            value = cell(float(s_QP[i, j]), y / number * float(inverse_P[j]))
            expected += value * (1 if weight_P is None else float(weight_P[j])) / s_QP.numel()
    found = xmclab.objective(name, reduction)(s_QP, y_QP, label_weight_P=weight_P, inverse_propensity_P=inverse_P)
    assert float(found) == pytest.approx(expected, rel=1e-10)


def test_other_terms_see_the_targets_as_they_are(batch):
    s_QP, y_QP, inverse_P = batch
    both = xmclab.objective("bce+ds+pw_bce")(s_QP, y_QP, inverse_propensity_P=inverse_P)
    alone = xmclab.objective("pw_bce")(s_QP, y_QP, inverse_propensity_P=inverse_P)
    torch.testing.assert_close(both, xmclab.objective("bce+ds")(s_QP, y_QP) + alone)


@each_loss
def test_without_propensities_it_says_what_is_missing(name, batch):
    s_QP, y_QP, inverse_P = batch
    with pytest.raises(ValueError, match=r"loss '\w+' needs label propensities: pass inverse_propensity_P"):
        xmclab.objective(name)(s_QP, y_QP)
    with pytest.raises(
        ValueError, match=r"inverse propensities must have one value per label: \(4,\) for scores \(4, 5\)"
    ):
        xmclab.objective(name)(s_QP, y_QP, inverse_propensity_P=inverse_P[:4])


@dataclass
class Scaled(DecoupledSoftmax):
    """A multi-class loss that multiplies by its targets."""

    targets = "inverse_propensity"

    def terms(self, s_QP, y_QP):
        return y_QP * super().terms(s_QP, y_QP)

    def value_and_grad(self, s_E, negatives_Q, pairs):
        weight_E = pairs.weight_E * pairs.target_E
        return super().value_and_grad(s_E, negatives_Q, Pairs(pairs.row_E, pairs.column_E, pairs.target_E, weight_E))


@pytest.mark.parametrize("q2l_share", [1.0, 0.0])
def test_labels_as_anchors_keep_their_own_propensities(by_terms, batch, q2l_share):
    s_QP, y_QP, inverse_P = batch
    expected_QP = y_QP * inverse_P * (y_QP / y_QP.sum(dim=1, keepdim=True).clamp(min=1e-9))
    ds_QP = DecoupledSoftmax().terms(s_QP, y_QP)
    if q2l_share == 0:
        expected_QP = y_QP * inverse_P * (y_QP / y_QP.sum(dim=0).clamp(min=1e-9))
        ds_QP = DecoupledSoftmax().terms(s_QP.T, y_QP.T).T
    anchors = (y_QP > 0).any(dim=1 if q2l_share else 0).sum()
    expected = (expected_QP * ds_QP).sum() / anchors
    for loss in (Scaled(), by_terms(Scaled())):
        objective = Objective([Term("scaled", 1.0, loss, PalN())], q2l_share=q2l_share)
        torch.testing.assert_close(objective(s_QP, y_QP, inverse_propensity_P=inverse_P), expected)


def test_blocks_of_all_labels_have_the_propensities_of_their_labels():
    torch.manual_seed(0)
    rows, columns = np.array([0, 0, 1, 2, 3]), np.array([8, 1, 4, 8, 0])
    none = np.zeros(0, np.int64)
    made = Batch(np.arange(4), np.arange(10), (rows, columns, np.ones(5, np.float32)), (none, none))
    inverse_L = torch.linspace(1, 10, 10, dtype=torch.float64)
    head = Classifier(dim=3, row_dropout=0.0)
    head.build(3, 10)
    head.double()
    pw = xmclab.objective("pw_bce", "ova").terms
    objective = Objective([Term("scaled", 1.0, Scaled(), PalN()), *pw], q2l_share=0.5)
    q_QD = torch.randn(4, 3, dtype=torch.float64)
    truth = Truth.of_batch(made, "cpu").with_propensities(inverse_L)
    engine, _ = all_labels(head, objective, q_QD, truth, None, lambda label: label, block=3)
    engine.backward()
    whole = objective.evaluate(q_QD @ head.psi.weight.detach().T, truth)
    torch.testing.assert_close(engine.evaluation.values, whole.values)
