"""Probabilistic contrastive loss against the hardest negatives, beside a double loop."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab_losses.k_prob_contrastive import KProbContrastive


def naive(negatives: int, c: float, d: float):
    def negative(s: float) -> float:
        p = c * math.exp(d * (min(s, 1) - 1))
        return -math.log(1 - p) / d + max(s - 1, 0) * p / (1 - p)

    def pair(scores: list[float], targets: list[float], p: int) -> float:
        rivals = sorted((s for s, y in zip(scores, targets, strict=True) if y == 0), reverse=True)[:negatives]
        return max(0, -math.log(c) - d * (scores[p] - 1)) / d + sum(map(negative, rivals))

    return pair


@pytest.mark.parametrize(("negatives", "c", "d"), [(1, 0.9, 1.5), (2, 0.9, 1.5), (3, 0.75, 3.0), (100, 0.9, 1.5)])
def test_equals_the_formula(equals_rows, negatives, c, d):
    equals_rows(KProbContrastive(negatives=negatives, c=c, d=d), naive(negatives, c, d))


def test_easier_negatives_have_no_gradient():
    s_QP = torch.tensor([[0.5, 0.4, 0.3, -0.2, 0.1]], requires_grad=True)
    y_QP = torch.tensor([[1.0, 0, 0, 0, 0]])
    KProbContrastive().terms(s_QP, y_QP)[0, 0].backward()
    assert (s_QP.grad != 0).tolist() == [[True, True, True, False, False]]
