"""Triplet loss: each positive against the hardest negatives of its anchor."""

from __future__ import annotations

import pytest
import torch

from xmclab_losses.triplet import Triplet


def naive(margin: float, negatives: int):
    def pair(scores: list[float], targets: list[float], p: int) -> float:
        rivals = sorted((s for s, y in zip(scores, targets, strict=True) if y == 0), reverse=True)[:negatives]
        return sum(max(0, margin + s - scores[p]) for s in rivals) / max(len(rivals), 1)

    return pair


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("negatives", [1, 3, 100])
def test_equals_the_formula(equals_rows, margin, negatives):
    equals_rows(Triplet(margin=margin, negatives=negatives), naive(margin, negatives))


def test_a_pair_that_leads_by_the_margin_has_no_gradient():
    s_QP = torch.tensor([[1.0, 0.5, 0.2], [0.6, 0.5, 0.2]], requires_grad=True)
    l_QP = Triplet(margin=0.3, negatives=2).terms(s_QP, torch.tensor([[1.0, 0, 0], [1, 0, 0]]))
    l_QP[:, 0].sum().backward()
    torch.testing.assert_close(l_QP[:, 0].detach(), torch.tensor([0.0, 0.1]))
    torch.testing.assert_close(s_QP.grad, torch.tensor([[0.0, 0, 0], [-0.5, 0.5, 0]]))


def test_random_negatives_are_negatives_and_all_have_their_turn():
    s_QP = torch.tensor([[0.0, 1.0, 2.0, 3.0, 9.0, -torch.inf]])
    y_QP = torch.tensor([[1.0, 0, 0, 0, 1, 0]])
    loss = Triplet(margin=0.0, negatives=1, pick="random")
    torch.manual_seed(0)
    seen = {float(loss.terms(s_QP, y_QP)[0, 0]) for _ in range(60)}
    assert seen == {1.0, 2.0, 3.0}
    every = Triplet(margin=0.0, negatives=10, pick="random").terms(s_QP, y_QP)
    assert float(every[0, 0]) == 2.0


def test_an_anchor_without_negatives_has_loss_and_gradient_zero():
    s_QP = torch.tensor([[3.0, -1.0], [1e4, -1e4]], requires_grad=True)
    l_QP = Triplet().terms(s_QP, torch.ones(2, 2))
    l_QP.sum().backward()
    assert (l_QP == 0).all()
    assert (s_QP.grad == 0).all()


def test_large_scores_that_are_close_keep_their_difference():
    s_QP = torch.tensor([[4096.0, 4096.125, 4096.25]])
    l_QP = Triplet(margin=0.25, negatives=2).terms(s_QP, torch.tensor([[1.0, 0, 0]]))
    assert float(l_QP[0, 0]) == 0.4375
