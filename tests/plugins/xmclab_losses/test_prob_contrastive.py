"""Probabilistic contrastive loss: the likelihood of pairs whose probability is c exp(d (cosine - 1))."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab_losses.prob_contrastive import ProbContrastive


def naive(c: float, d: float):
    def cell(s: float, y: float) -> float:
        p = c * math.exp(d * (min(s, 1) - 1))
        negative = -math.log(1 - p) / d + max(s - 1, 0) * p / (1 - p)
        return y * max(0, -math.log(c) - d * (s - 1)) / d + (1 - y) * negative

    return cell


@pytest.mark.parametrize(("c", "d"), [(0.75, 3.0), (0.9, 1.5)])
def test_equals_the_formula(equals_cells, c, d):
    equals_cells(ProbContrastive(c=c, d=d), naive(c, d))


def test_cosines_have_the_log_likelihood():
    s_QP = torch.linspace(-1, 1, 21, dtype=torch.float64)[None]
    p_QP = 0.75 * (3 * (s_QP - 1)).exp()
    loss = ProbContrastive()
    torch.testing.assert_close(loss.terms(s_QP, torch.ones_like(s_QP)), -p_QP.log() / 3)
    torch.testing.assert_close(loss.terms(s_QP, torch.zeros_like(s_QP)), -(1 - p_QP).log() / 3)


def test_negatives_below_the_threshold_cost_nothing():
    s_QP = torch.linspace(-1, 1, 21).requires_grad_()
    every, some = (ProbContrastive(threshold=t).terms(s_QP[None], torch.zeros(1, 21))[0] for t in (0.0, 0.05))
    kept = every >= 0.05
    assert kept.any()
    assert not kept.all()
    assert torch.equal(some, every * kept)
    some.sum().backward()
    assert torch.equal(s_QP.grad > 0, kept)
