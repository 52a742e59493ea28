"""Label smoothing of softmax cross-entropy."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

import xmclab
from xmclab_losses.smooth_softmax import SmoothSoftmax


@pytest.mark.parametrize("e", [0.0, 0.1, 1.0])
def test_equals_the_formula(equals_rows, e):
    def pair(scores: list[float], targets: list[float], p: int) -> float:
        mean = sum(scores) / len(scores)
        return math.log(sum(map(math.exp, scores))) - (1 - e) * scores[p] - e * mean

    equals_rows(SmoothSoftmax(smoothing=e), pair)


def test_equals_what_torch_makes_of_smoothed_targets():
    torch.manual_seed(0)
    s_QP, target_Q = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 5, 2, 2])
    found = xmclab.objective("smooth_softmax(smoothing=0.2)")(s_QP, one_hot(target_Q, 6).double())
    torch.testing.assert_close(found, cross_entropy(s_QP, target_Q, label_smoothing=0.2))


def test_an_absent_candidate_has_no_share_of_the_smoothing():
    s_QP, y_QP = torch.tensor([[0.3, -0.7, -math.inf]]), torch.tensor([[1.0, 0.0, 0.0]])
    found = SmoothSoftmax(smoothing=0.5).terms(s_QP, y_QP)[0, 0]
    assert torch.equal(found, SmoothSoftmax(smoothing=0.5).terms(s_QP[:, :2], y_QP[:, :2])[0, 0])
