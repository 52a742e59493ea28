"""What holds for each loss that the package ships."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Loss
from xmclab.host.registry import default_registry

LOSSES = {name: default_registry().get("loss", name)() for name in default_registry().names("loss") if "." not in name}
NAMES = {type(loss): name for name, loss in LOSSES.items()}
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
IN_COSINES = {
    "triplet",
    "prob_contrastive",
    "k_prob_contrastive",
}  # defined on cosines
STEEP = {"squared_hinge", "k_prob_contrastive"}  # the slope grows with the error; is c / (1 - c) = 9 for a negative


def counted(loss: Loss, s_QP: torch.Tensor, y_QP: torch.Tensor) -> torch.Tensor:
    """The values that a reduction reads: all cells of a binary loss, else the positives."""
    l_QP = loss.terms(s_QP, y_QP)
    return l_QP if loss.kind == "binary" else l_QP[y_QP > 0]


def example(seed: int, rows: int = 4, columns: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    s_QP = 3 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return s_QP, (torch.rand(rows, columns, generator=generator) < 0.4).double()


@each_loss
def test_gradients_are_those_of_the_values(loss):
    s_QP, y_QP = example(0)
    y_QP[0], y_QP[1], y_QP[2] = 0, 1, torch.eye(6)[3]
    assert torch.autograd.gradcheck(lambda s: counted(loss, s, y_QP), s_QP.requires_grad_())


@each_loss
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.randoms())
def test_order_of_anchors_and_candidates_does_not_matter(loss, seed, order):
    s_QP, y_QP = example(seed)
    rows, columns = list(range(4)), list(range(6))
    order.shuffle(rows)
    order.shuffle(columns)
    moved = loss.terms(s_QP[rows][:, columns], y_QP[rows][:, columns])
    where = y_QP[rows][:, columns] > 0 if loss.kind == "multiclass" else torch.ones(4, 6, dtype=torch.bool)
    torch.testing.assert_close(moved[where], loss.terms(s_QP, y_QP)[rows][:, columns][where])


@each_loss
@pytest.mark.parametrize("positives", [[], [0], [1], [2], [0, 1], [0, 1, 2]])
def test_huge_scores_stay_finite(loss, positives):
    s_QP = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4]], requires_grad=True)
    y_QP = torch.zeros(3, 3)
    y_QP[:, positives] = 1
    values = counted(loss, s_QP, y_QP)
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert (values >= 0).all()
    assert torch.isfinite(s_QP.grad).all()
    assert NAMES[type(loss)] in STEEP or (s_QP.grad.abs() <= 3).all()


@each_loss
def test_an_absent_candidate_is_as_good_as_removed(loss):
    s_QP, y_QP = example(1)
    y_QP[:, 2] = 0
    absent_QP = s_QP.clone().requires_grad_()
    values = counted(loss, absent_QP.masked_fill(torch.arange(6) == 2, -math.inf), y_QP)
    (gradient_QP,) = torch.autograd.grad(values.sum(), absent_QP)
    keep = [0, 1, 3, 4, 5]
    removed_QP = s_QP[:, keep].requires_grad_()
    expected = counted(loss, removed_QP, y_QP[:, keep])
    (expected_gradient_QP,) = torch.autograd.grad(expected.sum(), removed_QP)
    torch.testing.assert_close(values.sum(), expected.sum())
    torch.testing.assert_close(gradient_QP[:, keep], expected_gradient_QP)
    assert (gradient_QP[:, 2] == 0).all()


@each_loss
def test_nothing_larger_than_the_score_matrix_is_kept_for_the_gradient(loss):
    s_QP, y_QP = example(2, 30, 40)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        loss.terms(s_QP.requires_grad_(), torch.ones_like(y_QP))
    assert sizes
    assert max(sizes) <= s_QP.numel()
    assert len(sizes) <= 8


@each_loss
def test_inputs_are_left_as_they_were(loss):
    s_QP, y_QP = example(3)
    before = s_QP.clone(), y_QP.clone()
    loss.terms(s_QP, y_QP)
    assert torch.equal(s_QP, before[0])
    assert torch.equal(y_QP, before[1])


@each_loss
def test_the_temperature_is_unset(loss):
    assert loss.temperature == (1 if NAMES[type(loss)] in IN_COSINES else None)
