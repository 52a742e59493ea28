"""Binary cross-entropy, each cell by itself."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from xmclab_losses.bce import BinaryCrossEntropy


def test_equals_the_formula_for_soft_targets():
    torch.manual_seed(0)
    s_QP, y_QP = 3 * torch.randn(4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64)
    l_QP = BinaryCrossEntropy().terms(s_QP, y_QP)
    for i in range(4):
        for j in range(5):
            s, y = float(s_QP[i, j]), float(y_QP[i, j])
            probability = 1 / (1 + math.exp(-s))
            assert abs(l_QP[i, j] + y * math.log(probability) + (1 - y) * math.log(1 - probability)) < 1e-12


def test_equals_torch_to_double_precision_at_large_scores():
    s_QP = torch.linspace(-60, 60, 241, dtype=torch.float64)[None]
    for y_QP in (torch.zeros_like(s_QP), torch.ones_like(s_QP)):
        expected = binary_cross_entropy_with_logits(s_QP, y_QP, reduction="none")
        torch.testing.assert_close(BinaryCrossEntropy().terms(s_QP, y_QP), expected, rtol=0, atol=1e-13)


def test_an_absent_candidate_has_value_and_gradient_zero():
    s_QP = torch.tensor([[-math.inf, 1.0]], requires_grad=True)
    l_QP = BinaryCrossEntropy().terms(s_QP, torch.tensor([[0.0, 1.0]]))
    l_QP.sum().backward()
    assert l_QP[0, 0] == 0
    assert s_QP.grad[0, 0] == 0
    assert torch.isfinite(s_QP.grad).all()
