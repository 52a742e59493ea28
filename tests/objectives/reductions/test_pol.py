"""Pick one label: one positive per anchor, drawn by its target."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.objectives.reductions.pol import Pol
from xmclab.objectives.truth import Truth
from xmclab.plan.pool import build_batch


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


def picks(rows_Q: np.ndarray, targets_NL: sp.csr_array, beta: int, rng: np.random.Generator) -> np.ndarray:
    """The labels that the queries of a batch pick."""
    nothing, no_mined = sp.csr_array(targets_NL.shape, dtype=np.float32), np.empty((len(rows_Q), 0), dtype=np.int64)
    batch = build_batch(rows_Q, targets_NL, nothing, no_mined, beta, 0, rng)
    truth = Truth.of_batch(batch, "cpu")
    w_AM = truth.weigh(Pol(), truth.queries.target_AM, truth.queries.place_E)
    picked_E = w_AM.view(-1)[truth.queries.place_E].numpy() > 0
    assert (batch.positives[0][picked_E] == np.arange(len(rows_Q))).all()
    return batch.labels_P[batch.positives[1][picked_E]]


@pytest.mark.parametrize("beta", [1, 2])
def test_what_other_queries_draw_does_not_change_the_odds(beta):
    """All queries have label 0, which is always in the pool, and two of their own."""
    own = np.repeat(np.eye(50, dtype=np.float32), 2, axis=1)
    targets_NL = sp.csr_array(np.column_stack([np.ones(50, np.float32), own]))
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    shares = [(picks(np.arange(50), targets_NL, beta, rng) == 0).mean() for _ in range(100)]
    assert np.mean(shares) == pytest.approx(1 / 3, abs=0.03)


def test_rare_labels_of_tiny_are_picked_as_often_as_their_queries_have_them():
    targets_NL = open_dataset("tiny", "title", default_registry()).train.targets_NL
    rare_L = np.bincount(targets_NL.indices, minlength=targets_NL.shape[1]) <= 5
    rng = np.random.default_rng(0)
    batches = np.array_split(rng.permutation(targets_NL.shape[0]), 5)
    picked = np.concatenate([picks(rows_Q, targets_NL, 1, rng) for _ in range(20) for rows_Q in batches])
    share_N = (targets_NL @ rare_L) / np.diff(targets_NL.indptr)
    assert share_N.mean() == pytest.approx(0.425, abs=5e-4)
    assert rare_L[picked].mean() == pytest.approx(share_N.mean(), abs=0.01)


def test_it_takes_multiclass_losses_on_the_pool():
    assert (Pol.accepts, Pol.needs, Pol.among) == ("multiclass", "pool", "drawn")
