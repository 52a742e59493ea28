"""Decoupled softmax: the other positives of an anchor leave the denominator."""

from __future__ import annotations

import math

import torch

from xmclab_losses.ds import DecoupledSoftmax


def naive(s_QP: torch.Tensor, y_QP: torch.Tensor) -> torch.Tensor:
    l_QP = torch.zeros_like(s_QP)
    for i, row in enumerate(s_QP.tolist()):
        negatives = [math.exp(s) for n, s in enumerate(row) if not y_QP[i, n] > 0]
        for p, s in enumerate(row):
            l_QP[i, p] = math.log(math.exp(s) + sum(negatives)) - s
    return l_QP


def test_equals_the_formula_at_every_positive():
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(5, 7, dtype=torch.float64), (torch.rand(5, 7) < 0.4).double()
    found, expected = DecoupledSoftmax().terms(s_QP, y_QP), naive(s_QP, y_QP)
    torch.testing.assert_close(found[y_QP > 0], expected[y_QP > 0], rtol=0, atol=1e-12)


def test_a_positive_is_indifferent_to_other_positives():
    torch.manual_seed(1)
    s_QP, y_QP = torch.randn(3, 6, dtype=torch.float64, requires_grad=True), torch.tensor([[1.0, 1, 1, 0, 0, 0]] * 3)
    (gradient_QP,) = torch.autograd.grad(DecoupledSoftmax().terms(s_QP, y_QP)[:, 0].sum(), s_QP)
    assert (gradient_QP[:, 1:3] == 0).all()
    assert (gradient_QP[:, 0] < 0).all()
    assert (gradient_QP[:, 3:] > 0).all()


def test_an_anchor_of_positives_only_has_loss_and_gradient_zero():
    s_QP = torch.tensor([[3.0, -1.0], [1e4, -1e4]], requires_grad=True)
    l_QP = DecoupledSoftmax().terms(s_QP, torch.ones(2, 2))
    l_QP.sum().backward()
    assert (l_QP == 0).all()
    assert (s_QP.grad == 0).all()


def test_soft_targets_are_positives_too():
    s_QP = torch.randn(2, 4)
    hard_QP = torch.tensor([[1.0, 1, 0, 0], [0, 1, 0, 1]])
    assert torch.equal(DecoupledSoftmax().terms(s_QP, hard_QP), DecoupledSoftmax().terms(s_QP, 0.3 * hard_QP))
