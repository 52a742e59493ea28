"""Soft top-k: the threshold that lets k candidates through, and its gradient by the implicit function theorem."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab_losses.soft_topk import SoftTopK, threshold


def bisected(scores: list[float], k: int) -> float:
    """t with sum_l sigmoid(s_l + t) = k, by halving."""
    low, high = -1e3, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(1 / (1 + math.exp(-s - middle)) for s in scores)
        low, high = (middle, high) if total < k else (low, middle)
    return low


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_equals_the_formula(equals_rows, k):
    def pair(scores: list[float], targets: list[float], p: int) -> float:
        return math.log1p(math.exp(-scores[p] - bisected(scores, k)))

    equals_rows(SoftTopK(k=k), pair)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000), columns=st.integers(2, 60), k=st.integers(1, 10),
    log_scale=st.floats(-3, 4), double=st.booleans(),
)  # fmt: skip
def test_the_sum_is_k_whatever_the_scores(seed, columns, k, log_scale, double):
    generator = torch.Generator().manual_seed(seed)
    s_QP = 10**log_scale * torch.randn(4, columns, generator=generator, dtype=torch.float64)
    s_QP = s_QP if double else s_QP.float()
    t_Q1 = threshold(s_QP, k)
    assert torch.isfinite(t_Q1).all()
    if columns > k:
        # A rounding of the scores is what a threshold can be off by.
        off_Q1 = 4 * torch.finfo(s_QP.dtype).eps * s_QP.abs().amax(dim=1, keepdim=True)
        for sign in (-1, 1):
            sum_Q = (s_QP + t_Q1 + sign * off_Q1).double().sigmoid().sum(dim=1)
            assert (sign * (sum_Q - k) > -1e-5).all()


def test_with_at_most_k_candidates_loss_and_gradient_are_zero():
    s_QP = torch.tensor([[3.0, -1.0, -math.inf], [1e4, -1e4, 0.0]], requires_grad=True)
    l_QP = SoftTopK(k=3).terms(s_QP, torch.tensor([[1.0, 1, 0], [1, 1, 1]]))
    (l_QP[0, 0] + l_QP[0, 1] + l_QP[1].sum()).backward()
    assert float(l_QP[0, 1]) == 0
    assert (s_QP.grad == 0).all()


def test_a_positive_well_among_the_best_is_left_alone_and_one_below_is_pulled():
    s_QP = torch.tensor([[9.0, 8.0, -8.0, -9.0]], dtype=torch.float64, requires_grad=True)
    l_QP = SoftTopK(k=2).terms(s_QP, torch.ones(1, 4))
    assert float(l_QP[0, 1]) < 1e-3
    (gradient_QP,) = torch.autograd.grad(l_QP[0, 2], s_QP)
    assert gradient_QP[0, 2] < -0.5
    assert gradient_QP[0, 1] > 0.2


def test_adding_the_same_to_all_scores_of_an_anchor_changes_nothing():
    torch.manual_seed(0)
    s_QP = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    gradient_QP = torch.autograd.grad(SoftTopK(k=2).terms(s_QP, torch.ones(3, 7))[:, 0].sum(), s_QP)[0]
    torch.testing.assert_close(gradient_QP.sum(dim=1), torch.zeros(3, dtype=torch.float64))
