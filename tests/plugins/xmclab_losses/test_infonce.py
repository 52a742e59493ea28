"""InfoNCE with a margin: decoupled softmax of handicapped positives."""

from __future__ import annotations

import math

import pytest
import torch

from xmclab_losses.ds import DecoupledSoftmax
from xmclab_losses.infonce import InfoNCE


def naive(margin: float):
    def pair(scores: list[float], targets: list[float], p: int) -> float:
        own = math.exp(scores[p] - margin)
        others = sum(math.exp(s) for s, y in zip(scores, targets, strict=True) if y == 0)
        return -math.log(own / (own + others))

    return pair


@pytest.mark.parametrize("margin", [0.0, 0.5, 2.0])
def test_equals_the_formula(equals_rows, margin):
    equals_rows(InfoNCE(margin=margin), naive(margin))


def test_equals_ds_at_margin_0_and_costs_more_above():
    torch.manual_seed(1)
    s_QP, y_QP = torch.randn(4, 6, dtype=torch.float64), torch.eye(4, 6, dtype=torch.float64)
    ds = DecoupledSoftmax().terms(s_QP, y_QP)[y_QP > 0]
    assert torch.equal(InfoNCE(margin=0.0).terms(s_QP, y_QP)[y_QP > 0], ds)
    assert (InfoNCE(margin=1.0).terms(s_QP, y_QP)[y_QP > 0] > ds).all()
