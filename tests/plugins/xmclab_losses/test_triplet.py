"""Triplet loss: each positive against the hardest negatives of its anchor."""

from __future__ import annotations

import math

import pytest
import torch

import xmclab
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


def weighted(margin: float, negatives: int, temperature: float):
    """NGAME's loss of a positive: its violators by a softmax of their scores, over the number of negatives."""

    def pair(scores: list[float], targets: list[float], p: int) -> float:
        rivals = sorted((s for s, y in zip(scores, targets, strict=True) if y == 0), reverse=True)[:negatives]
        violators = [s for s in rivals if margin + s - scores[p] > 0]
        shares = [math.exp((s - scores[p]) / temperature) for s in violators]
        losses = [share * (margin + s - scores[p]) for share, s in zip(shares, violators, strict=True)]
        return sum(losses) / sum(shares) / negatives if violators else 0.0

    return pair


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("negatives", "temperature"), [(1, 0.1), (3, 0.1), (3, 1.0), (10, 0.5)])
def test_violators_are_weighted_by_a_softmax(equals_rows, margin, negatives, temperature):
    loss = Triplet(margin=margin, negatives=negatives, softmax=temperature)
    equals_rows(loss, weighted(margin, negatives, temperature))


def mean_over_cells(s_QP: torch.Tensor, y_QP: torch.Tensor, positives: int, negatives: int, pair) -> float:
    """The mean over anchors of the mean over `positives` x `negatives` cells, absent ones 0."""
    anchors = []
    for scores, targets in zip(s_QP.tolist(), y_QP.tolist(), strict=True):
        places = sorted((p for p, y in enumerate(targets) if y > 0), key=lambda p: scores[p])
        if places:
            total = sum(negatives * pair(scores, targets, p) for p in places[:positives])
            anchors.append(total / (positives * negatives))
    return sum(anchors) / len(anchors)


@pytest.mark.parametrize(("positives", "negatives"), [(1, 2), (3, 5), (20, 20)])
@pytest.mark.parametrize("q2l_share", [1.0, 0.0])
def test_psl_of_the_lowest_positives_is_the_mean_over_their_cells(positives, negatives, q2l_share):
    """The loss of NGAME's classifier, against loops."""
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(7, 12, dtype=torch.float64) / 2, torch.rand(7, 12) < 0.4
    y_QP[0], y_QP[1], y_QP[2] = False, True, torch.eye(12)[3] > 0
    options = f"margin=0.2, negatives={negatives}, positives={positives}, softmax=1"
    found = xmclab.objective(f"triplet({options})", reduction="psl", q2l_share=q2l_share)(s_QP, y_QP)
    anchors = (s_QP, y_QP) if q2l_share else (s_QP.T, y_QP.T)
    expected = mean_over_cells(*anchors, positives, negatives, weighted(0.2, negatives, 1.0))
    assert expected > 0
    assert float(found) == pytest.approx(expected, rel=1e-10)


def test_pol_of_the_weighted_loss_is_the_mean_over_anchors_and_negatives():
    """The loss of NGAME's encoder, whose other positives are not negatives."""
    torch.manual_seed(0)
    s_QP, y_QP = torch.rand(8, 15, dtype=torch.float64), torch.rand(8, 15) < 0.3
    drawn_QP = torch.zeros(8, 15, dtype=torch.bool)
    drawn_QP[torch.arange(8), y_QP.int().argmax(dim=1)] = True
    drawn_QP &= y_QP
    objective = xmclab.objective("triplet(negatives=10, softmax=0.1)", reduction="pol")
    found = objective(s_QP, y_QP, drawn_QP=drawn_QP)
    pair = weighted(0.3, 10, 0.1)
    losses = [pair(s_QP[i].tolist(), y_QP[i].tolist(), p) for i, p in drawn_QP.nonzero().tolist()]
    assert float(found) == pytest.approx(sum(losses) / len(losses), rel=1e-10)


def test_only_the_lowest_positives_have_a_gradient():
    s_QP = torch.tensor([[0.1, 0.4, 0.2, 0.5]], requires_grad=True)
    y_QP = torch.tensor([[1.0, 1, 1, 0]])
    l_QP = Triplet(positives=2, margin=0.3, negatives=1).terms(s_QP, y_QP)
    torch.testing.assert_close(l_QP[0, :3].detach(), torch.tensor([1.05, 0, 0.9]))
    l_QP[0, :3].sum().backward()
    torch.testing.assert_close(s_QP.grad, torch.tensor([[-1.5, 0, -1.5, 3.0]]))


@pytest.mark.parametrize("options", [{"softmax": 0.1}, {"softmax": 1.0, "positives": 3}, {"positives": 2}])
def test_options_leave_pairs_that_are_apart_and_absent_candidates_alone(options):
    s_QP = torch.tensor([[1.0, -torch.inf, 0.2], [1e4, 0.0, -1e4], [0.0, 1e4, -1e4]], requires_grad=True)
    y_QP = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0]])
    l_Q = Triplet(**options).terms(s_QP, y_QP)[:, 0]
    assert (l_Q[:2] == 0).all()
    assert float(l_Q[2]) > 0
    l_Q.sum().backward()
    assert (s_QP.grad[:2] == 0).all()
    assert torch.isfinite(s_QP.grad).all()
