"""Asymmetric loss: positives and negatives by powers of their own, the easiest negatives for nothing."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab_losses.asl import Asymmetric
from xmclab_losses.bce import BinaryCrossEntropy


def naive(gamma_pos: float, gamma_neg: float, clip: float):
    def cell(s: float, y: float) -> float:
        p = 1 / (1 + math.exp(-s))
        m = max(p - clip, 0)
        return -y * (1 - p) ** gamma_pos * math.log(p) - (1 - y) * m**gamma_neg * math.log(1 - m)

    return cell


@pytest.mark.parametrize("options", [(1.0, 4.0, 0.05), (0.0, 0.0, 0.2), (0.0, 0.5, 0.5), (2.0, 2.0, 0.0)])
def test_equals_the_formula(equals_cells, options):
    equals_cells(Asymmetric(**dict(zip(("gamma_pos", "gamma_neg", "clip"), options, strict=True))), naive(*options))


def test_without_focus_and_clip_it_is_bce():
    s_QP = torch.tensor([[-60.0, -3.0, 0.0, 2.0, 60.0, -torch.inf]])
    y_QP = torch.tensor([[1.0, 0.3, 0.0, 1.0, 0.0, 0.0]])
    bce = BinaryCrossEntropy().terms(s_QP, y_QP)
    torch.testing.assert_close(Asymmetric(gamma_pos=0.0, gamma_neg=0.0, clip=0.0).terms(s_QP, y_QP), bce)


def test_easy_negatives_below_the_clip_cost_nothing():
    s_QP = torch.tensor([[-4.0, -2.0]], requires_grad=True)  # probabilities 0.018 and 0.119
    l_QP = Asymmetric(clip=0.05).terms(s_QP, torch.zeros(1, 2))
    l_QP.sum().backward()
    assert (l_QP > 0).tolist() == [[False, True]]
    assert (s_QP.grad > 0).tolist() == [[False, True]]


def test_the_gradient_of_a_negative_taken_for_certain_fades():
    s_QP = torch.tensor([[1.0, 4.0, 10.0]], requires_grad=True)
    Asymmetric(clip=0.05).terms(s_QP, torch.zeros(1, 3)).sum().backward()
    assert s_QP.grad[0, 1] > s_QP.grad[0, 2] > 0
