"""Softmax cross-entropy: the value of `supcon` by another name, in closed form too."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy, one_hot

from xmclab.api import Pairs
from xmclab_losses.softmax import Softmax
from xmclab_losses.supcon import SupCon


def naive(scores: list[float], targets: list[float], p: int) -> float:
    return math.log(sum(map(math.exp, scores))) - scores[p]


def test_equals_the_formula(equals_rows):
    equals_rows(Softmax(), naive)


def test_equals_cross_entropy_for_one_positive():
    torch.manual_seed(1)
    s_QP, target_Q = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 5, 2, 2])
    y_QP = one_hot(target_Q, 6).double()
    expected_Q = cross_entropy(s_QP, target_Q, reduction="none")
    torch.testing.assert_close(Softmax().terms(s_QP, y_QP)[y_QP > 0], expected_Q)


def test_every_cell_is_that_of_supcon():
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(5, 7, dtype=torch.float64), (torch.rand(5, 7) < 0.4).double()
    assert torch.equal(Softmax().terms(s_QP, y_QP), SupCon().terms(s_QP, y_QP))


def test_it_has_the_closed_form_of_supcon():
    s_E, negatives_Q = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, -0.5])
    pairs = Pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2]), torch.ones(3), torch.tensor([0.5, 0.5, 1.0]))
    assert Softmax().has_closed_form
    found, expected = (loss.value_and_grad(s_E, negatives_Q, pairs) for loss in (Softmax(), SupCon()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
