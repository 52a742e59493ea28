"""Each loss of pytorch-metric-learning by name has that library's own value and gradient, for pairs of many labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.reducers import MeanReducer, SumReducer
from torch import Tensor
from torch.nn.functional import normalize

import xmclab
import xmclab_pml
from xmclab.api import Loss
from xmclab.host.registry import default_registry

QUERIES, LABELS = 7, 9
ONE_NUMBERING = ["HistogramLoss", "LiftedStructureLoss", "ThresholdConsistentMarginLoss"]  # they know no second set
OF_ANCHORS = ["CircleLoss", "GeneralizedLiftedStructureLoss", "MultiSimilarityLoss", "SupConLoss"]
OF_PAIRS = ["LiftedStructureLoss", "NTXentLoss", "TupletMarginLoss"]
OF_THE_BATCH = ["HistogramLoss", "ThresholdConsistentMarginLoss"]
OTHERS = ["ContrastiveLoss", "IntraPairVarianceLoss", "MarginLoss", "NCALoss", "TripletMarginLoss"]

each_loss = pytest.mark.parametrize("name", xmclab_pml.LOSSES)


def part(name: str, **options: Any) -> Loss:
    loss: Loss = default_registry().get("loss", f"pml.{name}")(**options)
    return loss


def vectors() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    q_QD, z_PD = (normalize(torch.randn(size, 5, dtype=torch.float64)) for size in (QUERIES, LABELS))
    return q_QD.requires_grad_(), z_PD.requires_grad_()


def regular() -> Tensor:
    """Every query has three positives, so that the mean over pairs is the mean over queries of means."""
    torch.manual_seed(1)
    return torch.rand(QUERIES, LABELS).argsort(dim=1) < 3


def irregular() -> Tensor:
    """Every query has a positive and a negative."""
    torch.manual_seed(2)
    y_QP = torch.rand(QUERIES, LABELS) < 0.35
    y_QP[:, 0], y_QP[:, 1] = True, False
    return y_QP


def peer(name: str, y_QP: Tensor, q_QD: Tensor, z_PD: Tensor, reducer: Any = None, **options: Any) -> Tensor:
    """The value of the loss, called as that library documents it."""
    loss = getattr(losses, name)(reducer=reducer or MeanReducer(), **options)
    a1, p, a2, n = *torch.where(y_QP), *torch.where(~y_QP)
    value: Tensor
    if name in ONE_NUMBERING:
        value = loss(torch.cat([q_QD, z_PD]), indices_tuple=(a1, p + QUERIES, a2, n + QUERIES))
    else:
        value = loss(q_QD, indices_tuple=(a1, p, a2, n), ref_emb=z_PD)
    return value


def assert_same(ours: Tensor, theirs: Tensor, inputs: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    gradients = (torch.autograd.grad(value, inputs) for value in (ours, theirs))
    for x, found, wanted in zip(inputs, *gradients, strict=True):
        assert wanted.abs().max() > 0
        # They normalise once more: their gradient has no part along the unit vector.
        along = (found * x).sum(dim=1, keepdim=True) * x
        torch.testing.assert_close(found - along, wanted, rtol=1e-5, atol=1e-7)


def test_the_cases_below_are_all_losses() -> None:
    assert sorted({*OF_ANCHORS, *OF_PAIRS, *OF_THE_BATCH, *OTHERS}) == sorted(xmclab_pml.LOSSES)


@pytest.mark.parametrize("name", [*OF_ANCHORS, *OF_THE_BATCH])
def test_a_value_of_an_anchor_is_the_mean_of_its_positives(name: str) -> None:
    inputs, y_QP = vectors(), irregular()
    ours = xmclab.objective(f"pml.{name}", reduction="psl")(inputs[0] @ inputs[1].T, y_QP)
    assert_same(ours, peer(name, y_QP, *inputs), inputs)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_a_value_of_a_pair_is_that_of_the_positive(name: str) -> None:
    inputs, y_QP = vectors(), irregular()
    ours = xmclab.objective(f"pml.{name}", reduction="pal")(inputs[0] @ inputs[1].T, y_QP)
    assert_same(ours * QUERIES, peer(name, y_QP, *inputs, SumReducer()), inputs)


@pytest.mark.parametrize("name", [*OF_PAIRS, "IntraPairVarianceLoss", "MarginLoss", "TripletMarginLoss"])
def test_the_mean_is_theirs_where_queries_have_equally_many_positives(name: str) -> None:
    inputs, y_QP = vectors(), regular()
    ours = xmclab.objective(f"pml.{name}", reduction="psl")(inputs[0] @ inputs[1].T, y_QP)
    assert_same(ours, peer(name, y_QP, *inputs), inputs)


def test_contrastive_loss_is_a_binary_loss_of_all_cells() -> None:
    inputs, y_QP = vectors(), irregular()
    ours = xmclab.objective("ova(pml.ContrastiveLoss,cells='sum')")(inputs[0] @ inputs[1].T, y_QP)
    assert_same(ours, peer("ContrastiveLoss", y_QP, *inputs, SumReducer()), inputs)


def test_a_soft_target_is_between_the_values_of_a_positive_and_a_negative() -> None:
    loss, s_QP = part("ContrastiveLoss"), torch.tensor([[0.8, -0.3, 0.6]])
    one, none, some = (loss.terms(s_QP, torch.full((1, 3), y)) for y in (1.0, 0.0, 0.25))
    assert (one > 0).any()
    assert (none > 0).any()
    torch.testing.assert_close(some, 0.25 * one + 0.75 * none)


def test_nca_is_theirs_of_each_anchor_by_itself() -> None:
    """Their call has one class per vector: a query sees its positives as one class. One query alone has loss 0."""
    (q_QD, z_PD), y_QP = vectors(), irregular()
    ours = xmclab.objective("pml.NCALoss", reduction="psl")(q_QD @ z_PD.T, y_QP)
    loss, twice = losses.NCALoss(), torch.ones(2, dtype=torch.long)
    each = [loss(q_D.expand(2, -1), twice, None, z_PD, y_P.long()) for q_D, y_P in zip(q_QD, y_QP, strict=True)]
    assert_same(ours, torch.stack(each).mean(), (q_QD, z_PD))


@pytest.mark.parametrize(("name", "default"), [("SupConLoss", 0.1), ("NTXentLoss", 0.07)])
def test_their_temperature_divides_once_whatever_the_head_has(name: str, default: float) -> None:
    inputs, y_QP = vectors(), regular()
    s_QP = inputs[0] @ inputs[1].T
    ours = xmclab.objective(f"pml.{name}(temperature=0.3)", temperature=0.02)(s_QP, y_QP)
    assert_same(ours, peer(name, y_QP, *inputs, temperature=0.3), inputs)
    assert part(name).temperature == default


@each_loss
def test_the_temperature_of_the_head_is_never_used(name: str) -> None:
    assert part(name).temperature == (1.0 if name not in ("SupConLoss", "NTXentLoss") else part(name).temperature)
    s_QP, y_QP = torch.rand(4, 6) - 0.5, torch.eye(4, 6)
    of_head = [xmclab.objective(f"pml.{name}", temperature=value)(s_QP, y_QP) for value in (0.05, 1.0)]
    torch.testing.assert_close(*of_head)


@pytest.mark.parametrize(
    ("choice", "distance"),
    [("cosine", CosineSimilarity()), ("euclidean", LpDistance()), ("squared_euclidean", LpDistance(power=2))],
)
@pytest.mark.parametrize("name", ["TripletMarginLoss", "GeneralizedLiftedStructureLoss", "MultiSimilarityLoss"])
def test_the_distance_is_a_choice(name: str, choice: str, distance: torch.nn.Module) -> None:
    inputs, y_QP = vectors(), regular()
    ours = xmclab.objective(f"pml.{name}(distance={choice!r})")(inputs[0] @ inputs[1].T, y_QP)
    assert_same(ours, peer(name, y_QP, *inputs, distance=distance), inputs)


@pytest.mark.parametrize(
    ("call", "theirs"),
    [
        ("MultiSimilarityLoss(alpha=3,beta=20,base=0.3)", {"alpha": 3, "beta": 20, "base": 0.3}),
        ("TripletMarginLoss(margin=0.4,smooth_loss=True)", {"margin": 0.4, "smooth_loss": True}),
        ("HistogramLoss(n_bins=20)", {"n_bins": 20}),
        ("MarginLoss(margin=0.1,beta=0.9)", {"margin": 0.1, "beta": 0.9}),
    ],
)
def test_options_reach_their_loss(call: str, theirs: dict[str, Any]) -> None:
    inputs, y_QP = vectors(), regular()
    name = call.partition("(")[0]
    assert_same(
        xmclab.objective(f"pml.{call}")(inputs[0] @ inputs[1].T, y_QP), peer(name, y_QP, *inputs, **theirs), inputs
    )


@each_loss
def test_an_ignored_pair_is_as_good_as_removed(name: str) -> None:
    (q_QD, z_PD), y_QP = vectors(), irregular()
    y_QP[:, 2] = False
    objective, ignore_QP = xmclab.objective(f"pml.{name}"), torch.zeros(QUERIES, LABELS, dtype=torch.bool)
    ignore_QP[:, 2] = True
    keep = [column for column in range(LABELS) if column != 2]
    ours = objective(q_QD @ z_PD.T, y_QP, ignore_QP=ignore_QP)
    removed = objective(q_QD @ z_PD[keep].T, y_QP[:, keep])
    torch.testing.assert_close(ours, removed)
    for found, wanted in zip(*(torch.autograd.grad(value, (q_QD, z_PD)) for value in (ours, removed)), strict=True):
        torch.testing.assert_close(found, wanted)


@each_loss
@pytest.mark.parametrize("positives", [[], [0], [0, 1], [0, 1, 2]])
def test_every_batch_has_a_finite_value_and_gradient(name: str, positives: list[int]) -> None:
    s_QP = torch.tensor([[1.0, -1.0, 0.0], [-1e4, 1e4, 0.5], [1.0, 1.0, 1.0], [0.3, 0.3, -0.2]], requires_grad=True)
    y_QP = torch.zeros(4, 3)
    y_QP[:, positives] = 1
    l_QP = part(name).terms(s_QP, y_QP)
    value = l_QP[y_QP > 0].sum() if part(name).kind == "multiclass" else l_QP.sum()
    (gradient_QP,) = torch.autograd.grad(value, s_QP)
    assert value.isfinite()
    assert gradient_QP.isfinite().all()


@each_loss
def test_the_order_of_queries_and_labels_does_not_matter(name: str) -> None:
    (q_QD, z_PD), y_QP = vectors(), irregular()
    objective, rows, columns = xmclab.objective(f"pml.{name}"), torch.randperm(QUERIES), torch.randperm(LABELS)
    s_QP = q_QD @ z_PD.T
    torch.testing.assert_close(objective(s_QP[rows][:, columns], y_QP[rows][:, columns]), objective(s_QP, y_QP))


@each_loss
def test_scores_are_left_as_they_were(name: str) -> None:
    s_QP, y_QP = torch.rand(4, 6), torch.eye(4, 6)
    before = s_QP.clone()
    part(name, miner="MultiSimilarityMiner").terms(s_QP, y_QP)
    assert torch.equal(s_QP, before)


def test_labels_are_anchors_in_the_other_direction() -> None:
    (q_QD, z_PD), y_QP = vectors(), irregular()
    loss: Callable[[Tensor, Tensor], Tensor] = xmclab.objective("pml.SupConLoss", q2l_share=0.0)
    turned: Callable[[Tensor, Tensor], Tensor] = xmclab.objective("pml.SupConLoss")
    s_QP = q_QD @ z_PD.T
    torch.testing.assert_close(loss(s_QP, y_QP), turned(s_QP.T, y_QP.T))
    assert math.isfinite(float(loss(s_QP, y_QP).detach()))
