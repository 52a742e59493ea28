"""Stochastic negative mining: a softmax of the positive and the hardest of some random negatives."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from xmclab_losses.ds import DecoupledSoftmax
from xmclab_losses.snm import StochasticNegativeMining


def naive(hardest: int):
    def pair(scores: list[float], targets: list[float], p: int) -> float:
        rivals = sorted((s for s, y in zip(scores, targets, strict=True) if y == 0), reverse=True)[:hardest]
        return math.log(1 + sum(math.exp(s - scores[p]) for s in rivals))

    return pair


@pytest.mark.parametrize("hardest", [1, 3, 100])
def test_equals_the_formula(equals_rows, hardest):
    equals_rows(StochasticNegativeMining(hardest=hardest), naive(hardest))


def test_with_all_negatives_it_is_ds():
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(5, 9, dtype=torch.float64), (torch.rand(5, 9) < 0.4).double()
    expected = DecoupledSoftmax().terms(s_QP, y_QP)[y_QP > 0]
    for drawn in (0, 9, 50):
        found = StochasticNegativeMining(drawn=drawn, hardest=9).terms(s_QP, y_QP)[y_QP > 0]
        torch.testing.assert_close(found, expected)


def test_every_subset_of_the_negatives_is_drawn_and_its_hardest_count():
    s_QP = torch.tensor([[0.0, 1.0, 2.0, 3.0, 9.0, -torch.inf]], dtype=torch.float64).repeat(6000, 1)
    y_QP = torch.tensor([[1.0, 0, 0, 0, 1, 0]]).repeat(6000, 1)
    torch.manual_seed(0)
    for drawn, hardest in ((2, 1), (2, 2), (1, 1)):
        l_Q = StochasticNegativeMining(drawn=drawn, hardest=hardest).terms(s_QP, y_QP)[:, 0]
        values = [
            math.log(1 + sum(math.exp(s) for s in sorted(subset)[-hardest:]))
            for subset in itertools.combinations([1.0, 2.0, 3.0], drawn)
        ]
        assert {round(value, 9) for value in l_Q.tolist()} == {round(value, 9) for value in values}
        assert float(l_Q.mean()) == pytest.approx(sum(values) / len(values), abs=0.05)


def test_draws_follow_torchs_generator():
    s_QP, y_QP = torch.randn(20, 30), torch.eye(20, 30)
    loss, found = StochasticNegativeMining(drawn=5, hardest=2), []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        found.append(loss.terms(s_QP, y_QP)[y_QP > 0])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_an_anchor_without_negatives_has_loss_and_gradient_zero():
    s_QP = torch.tensor([[3.0, -1.0], [1e4, -1e4]], requires_grad=True)
    for drawn in (0, 3):
        l_QP = StochasticNegativeMining(drawn=drawn).terms(s_QP, torch.ones(2, 2))
        (gradient_QP,) = torch.autograd.grad(l_QP.sum(), s_QP)
        assert (l_QP == 0).all()
        assert (gradient_QP == 0).all()
