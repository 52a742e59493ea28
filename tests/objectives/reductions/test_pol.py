"""Pick one label: one positive per anchor, drawn by its target."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.objectives.reductions.pol import Pol


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 6), columns=st.integers(1, 6))
def test_exactly_one_positive_of_each_anchor_that_has_one(seed, rows, columns):
    torch.manual_seed(seed)
    y_QP = torch.rand(rows, columns) * (torch.rand(rows, columns) < 0.5)
    w_QP = Pol().weights(y_QP)
    assert torch.equal(w_QP.sum(dim=1), (y_QP > 0).any(dim=1).float())
    assert (w_QP[y_QP <= 0] == 0).all()
    assert ((w_QP == 0) | (w_QP == 1)).all()


def test_draws_are_proportional_to_the_targets():
    torch.manual_seed(0)
    y_P = torch.tensor([0.0, 1.0, 0.5, 0.0, 2.5])
    shares_P = Pol().weights(y_P.expand(20_000, 5)).mean(dim=0)
    torch.testing.assert_close(shares_P, y_P / y_P.sum(), rtol=0, atol=0.015)
    assert (shares_P[y_P == 0] == 0).all()


def test_the_draw_follows_the_global_seed():
    y_QP = torch.ones(50, 4)
    torch.manual_seed(3)
    first_QP = Pol().weights(y_QP)
    second_QP = Pol().weights(y_QP)
    torch.manual_seed(3)
    assert torch.equal(Pol().weights(y_QP), first_QP)
    assert not torch.equal(second_QP, first_QP)


def test_it_draws_on_the_device_of_the_targets():
    assert Pol().weights(torch.empty(3, 4, device="meta")).device.type == "meta"


def test_it_takes_multiclass_losses_on_the_pool():
    assert (Pol.accepts, Pol.needs) == ("multiclass", "pool")
