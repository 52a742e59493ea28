"""Agreement with pytorch-metric-learning: pairs are given as indices, labels as reference embeddings."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss, SupConLoss
from torch import Tensor
from torch.nn.functional import normalize

import xmclab

TEMPERATURE = 0.2


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors of queries and labels, and positives: every anchor has at least one positive and one negative."""
    torch.manual_seed(0)
    x_QD = normalize(torch.randn(7, 5, dtype=torch.float64))
    z_PD = normalize(torch.randn(9, 5, dtype=torch.float64))
    y_QP = torch.rand(7, 9) < 0.35
    y_QP[:, 0], y_QP[:, 1] = True, False
    return x_QD.requires_grad_(), z_PD.requires_grad_(), y_QP


def peer(loss: torch.nn.Module, x_QD: Tensor, z_PD: Tensor, y_QP: Tensor) -> Tensor:
    value: Tensor = loss(x_QD, indices_tuple=(*torch.where(y_QP), *torch.where(~y_QP)), ref_emb=z_PD)
    return value


def assert_same(ours: Tensor, theirs: Tensor, inputs: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    for x, found, wanted in zip(
        inputs, torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True
    ):
        # Their cosine normalises again: its gradient has no part along the unit vector.
        along = (found * x).sum(dim=1, keepdim=True) * x
        torch.testing.assert_close(found - along, wanted, rtol=1e-5, atol=1e-8)


def test_supcon_under_psl_is_their_supcon(batch):
    x_QD, z_PD, y_QP = batch
    ours = xmclab.objective("supcon", reduction="psl", temperature=TEMPERATURE)(x_QD @ z_PD.T, y_QP)
    theirs = peer(SupConLoss(temperature=TEMPERATURE), x_QD, z_PD, y_QP)
    assert_same(ours, theirs, (x_QD, z_PD))


def test_ds_under_pal_is_their_ntxent_which_averages_over_pairs(batch):
    x_QD, z_PD, y_QP = batch
    ours = xmclab.objective("ds", reduction="pal", temperature=TEMPERATURE)(x_QD @ z_PD.T, y_QP)
    theirs = peer(NTXentLoss(temperature=TEMPERATURE), x_QD, z_PD, y_QP)
    assert_same(ours * len(y_QP) / y_QP.sum(), theirs, (x_QD, z_PD))


def test_ds_label_to_query_is_their_ntxent_with_the_sides_swapped(batch):
    x_QD, z_PD, y_QP = batch
    y_QP = y_QP[:, 1:]
    y_QP[0, :], y_QP[1, :] = True, False
    z_PD = z_PD[1:]
    ours = xmclab.objective("ds", reduction="pal", temperature=TEMPERATURE, q2l_share=0.0)(x_QD @ z_PD.T, y_QP)
    theirs = peer(NTXentLoss(temperature=TEMPERATURE), z_PD, x_QD, y_QP.T)
    torch.testing.assert_close(ours * y_QP.shape[1] / y_QP.sum(), theirs, rtol=1e-6, atol=1e-9)
