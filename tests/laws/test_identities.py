"""The identities between losses and reductions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

import xmclab
from xmclab.api import Reduction
from xmclab.host.registry import default_registry
from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.truth import Truth
from xmclab.plan.pool import build_batch

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 10_000)
MULTICLASS = ["ds", "supcon", "softmax"]


@few
@given(seed=seeds)
def test_one_positive_makes_softmax_supcon_ds_and_all_reductions_one(problem, seed):
    p = problem(seed)
    y_QP = torch.zeros_like(p.y_QP)
    y_QP[torch.arange(len(y_QP)), p.s_QP.argmin(dim=1)] = 1
    values = [
        xmclab.objective(loss, reduction=reduction)(p.s_QP, y_QP)
        for loss, reduction in itertools.product(MULTICLASS, ["psl", "pal", "pal_n", "pol"])
    ]
    torch.testing.assert_close(torch.stack(values), values[0].expand(len(values)), rtol=1e-12, atol=1e-12)


@few
@given(seed=seeds, soft=st.booleans())
def test_ds_is_at_most_supcon(problem, seed, soft):
    p = problem(seed, soft)
    for reduction in ("psl", "pal"):
        ds, supcon = (xmclab.objective(loss, reduction=reduction)(p.s_QP, p.y_QP) for loss in ("ds", "supcon"))
        assert ds <= supcon + 1e-12


@few
@given(seed=seeds, soft=st.booleans(), loss=st.sampled_from(MULTICLASS))
def test_psl_on_all_labels_is_pal_n(problem, seed, soft, loss):
    p = problem(seed, soft)
    assert torch.equal(*(xmclab.objective(loss, reduction=name)(p.s_QP, p.y_QP) for name in ("psl", "pal_n")))


@dataclass
class Picked(Reduction):
    """One given positive per anchor: its first, second, ... from the left."""

    rank_Q: tuple[int, ...] = ()

    def weights(self, y_QP: Tensor) -> Tensor:
        rank_QP = (y_QP > 0).cumsum(dim=1) - 1
        return ((rank_QP == torch.tensor(self.rank_Q)[:, None]) & (y_QP > 0)).to(y_QP.dtype)


def with_picks(loss: str, rank_Q: tuple[int, ...]) -> Objective:
    return Objective([Term(loss, 1.0, default_registry().get("loss", loss)(), Picked(rank_Q))])


@pytest.mark.parametrize("loss", MULTICLASS)
@pytest.mark.parametrize("soft", [False, True])
def test_the_mean_over_all_picks_is_pal_n(problem, loss, soft):
    p = problem(3, soft)
    rows = (p.y_QP > 0).any(dim=1)
    s_QP, y_QP = p.s_QP[rows], p.y_QP[rows]
    assert len(y_QP) > 1
    chances_QP = y_QP / y_QP.sum(dim=1, keepdim=True)
    expectation = 0.0
    chances = [row[row > 0] for row in chances_QP]
    for picks in itertools.product(*(range(len(row)) for row in chances)):
        chance = float(torch.stack([row[pick] for row, pick in zip(chances, picks, strict=True)]).prod())
        expectation += chance * float(with_picks(loss, picks)(s_QP, y_QP))
    assert expectation == pytest.approx(float(xmclab.objective(loss, reduction="pal_n")(s_QP, y_QP)), abs=1e-12)


@pytest.mark.parametrize("loss", MULTICLASS)
def test_pol_is_the_loss_at_one_pick_and_its_mean_is_pal_n(loss):
    s_QP = torch.tensor([[1.0, -1.0, 0.5, 2.0], [0.3, 0.1, -2.0, 1.0]], dtype=torch.float64)
    y_QP = torch.tensor([[1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    picks = itertools.product([0, 1], [0, 1, 2])
    possible = torch.stack([with_picks(loss, rank_Q)(s_QP, y_QP) for rank_Q in picks])
    torch.manual_seed(0)
    drawn = torch.stack([xmclab.objective(loss, reduction="pol")(s_QP, y_QP) for _ in range(40)])
    closest = (drawn[:, None] - possible[None, :]).abs().min(dim=1).values
    assert (closest < 1e-12).all()
    many = xmclab.objective(loss, reduction="pol")(s_QP.repeat(20_000, 1), y_QP.repeat(20_000, 1))
    expected = xmclab.objective(loss, reduction="pal_n")(s_QP, y_QP)
    assert float(many) == pytest.approx(float(expected), abs=0.03)


@pytest.mark.parametrize("loss", MULTICLASS)
def test_the_mean_of_pol_over_all_draws_of_one_is_pal_n(loss):
    """However large a target is, its label is as likely to be drawn as any other."""
    torch.manual_seed(0)
    s_QP = torch.randn(3, 5, dtype=torch.float64)
    y_QP = torch.tensor([[1.0, 0.0, 0.1, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0, 0.0], [0.0, 0.2, 0.1, 0.9, 0.0]])
    draws = itertools.product(*(row.nonzero().flatten().tolist() for row in y_QP))
    masks = [torch.nn.functional.one_hot(torch.tensor(draw), y_QP.shape[1]).bool() for draw in draws]
    pol, pal_n = (xmclab.objective(loss, reduction=name) for name in ("pol", "pal_n"))
    mean = torch.stack([pol(s_QP, y_QP, drawn_QP=drawn_QP) for drawn_QP in masks]).mean()
    torch.testing.assert_close(mean, pal_n(s_QP, y_QP > 0), rtol=1e-12, atol=1e-12)


def test_the_mean_of_pol_over_the_draws_of_a_batch_is_pal_n():
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(4, 8, dtype=torch.float64), torch.zeros(4, 8)
    y_QP[:, :3] = torch.tensor([0.01, 0.3, 1.0])
    targets_NL, filter_NL = (sp.csr_array(x_QP.numpy()) for x_QP in (y_QP, torch.eye(4, 8)))
    mined_QE = np.tile(np.arange(8), (4, 1))  # the same candidates in every batch
    pol, rng, values = xmclab.objective("ds", reduction="pol"), np.random.default_rng(0), []
    for _ in range(2000):
        batch = build_batch(np.arange(4), targets_NL, filter_NL, mined_QE, 1, 0, rng)
        values.append(pol.evaluate(s_QP, Truth.of_batch(batch, "cpu")).total)
    ignore_QP = torch.eye(4, 8).bool() & (y_QP == 0)
    expected = xmclab.objective("ds", reduction="pal_n")(s_QP, y_QP > 0, ignore_QP=ignore_QP)
    found = torch.stack(values)
    assert abs(found.mean() - expected) < 3 * found.std() / len(values) ** 0.5


@few
@given(seed=seeds, soft=st.booleans())
def test_ova_of_bce_is_torchs_bce(problem, seed, soft):
    p = problem(seed, soft)
    for cells in ("mean", "sum"):
        found = xmclab.objective(f"ova(bce, cells={cells!r})")(p.s_QP, p.y_QP)
        torch.testing.assert_close(found, binary_cross_entropy_with_logits(p.s_QP, p.y_QP, reduction=cells))


def test_ova_of_bce_takes_label_weights_as_torch_does(problem):
    p = problem(5, soft=True)
    found = xmclab.objective("bce", reduction="ova")(p.s_QP, p.y_QP, label_weight_P=p.label_weight_P)
    torch.testing.assert_close(found, binary_cross_entropy_with_logits(p.s_QP, p.y_QP, weight=p.label_weight_P))


@few
@given(seed=seeds, soft=st.booleans(), loss=st.sampled_from(MULTICLASS), reduction=st.sampled_from(["psl", "pal"]))
def test_label_to_query_is_the_loss_of_the_transposes(problem, seed, soft, loss, reduction):
    p = problem(seed, soft)
    l2q = xmclab.objective(loss, reduction=reduction, q2l_share=0.0)(p.s_QP, p.y_QP)
    q2l = xmclab.objective(loss, reduction=reduction)
    torch.testing.assert_close(l2q, q2l(p.s_QP.T.contiguous(), p.y_QP.T.contiguous()))
    both = xmclab.objective(loss, reduction=reduction, symmetric=True)(p.s_QP, p.y_QP)
    torch.testing.assert_close(both, (q2l(p.s_QP, p.y_QP) + l2q) / 2)


@few
@given(seed=seeds, soft=st.booleans(), order=st.randoms(), reduction=st.sampled_from(["psl", "pal"]))
def test_order_of_queries_and_labels_does_not_matter(problem, seed, soft, order, reduction):
    p = problem(seed, soft)
    rows, columns = list(range(p.s_QP.shape[0])), list(range(p.s_QP.shape[1]))
    order.shuffle(rows)
    order.shuffle(columns)
    objective = xmclab.objective("ds+0.5*supcon+bce+softmax", reduction=reduction, symmetric=True)
    found = objective(
        p.s_QP[rows][:, columns],
        p.y_QP[rows][:, columns],
        ignore_QP=p.ignore_QP[rows][:, columns],
        label_weight_P=p.label_weight_P[columns],
    )
    expected = objective(p.s_QP, p.y_QP, ignore_QP=p.ignore_QP, label_weight_P=p.label_weight_P)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("loss", ["ds", "supcon", "softmax", "bce"])
def test_scores_of_joined_unit_vectors_are_the_sum_of_cosines(loss):
    torch.manual_seed(0)
    parts = [(normalize(torch.randn(4, 3).double()), normalize(torch.randn(6, 3).double())) for _ in range(2)]
    joined_QP = torch.cat([q for q, _ in parts], dim=1) @ torch.cat([z for _, z in parts], dim=1).T
    cosines_QP = sum(torch.cosine_similarity(q[:, None], z[None], dim=2) for q, z in parts)
    torch.testing.assert_close(joined_QP, cosines_QP)
    y_QP = torch.rand(4, 6) < 0.4
    objective = xmclab.objective(loss)
    torch.testing.assert_close(objective(joined_QP, y_QP), objective(cosines_QP, y_QP))
