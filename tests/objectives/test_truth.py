"""Lists of known pairs say the same as matrices, in both directions, and stay on their device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Batch
from xmclab.objectives.truth import Truth


def matrices(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = [int(n) for n in torch.randint(1, 7, (2,), generator=generator)]
    y_QP = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.4)
    return y_QP, torch.rand(shape, generator=generator) < 0.2


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_a_matrix_comes_back(seed: int) -> None:
    y_QP, ignore_QP = matrices(seed)
    truth = Truth.of_matrix(y_QP, ignore_QP)
    assert torch.equal(truth.matrix(torch.float32), y_QP.masked_fill(ignore_QP, 0))
    assert torch.equal(truth.transposed.matrix(torch.float32), truth.matrix(torch.float32).T)
    assert torch.equal(truth.hide_ignored(torch.zeros(y_QP.shape), 1.0) > 0, ignore_QP)
    assert torch.equal(truth.transposed.hide_ignored(torch.zeros(y_QP.T.shape), 1.0) > 0, ignore_QP.T)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_narrow_rows_hold_the_targets_of_each_anchor_from_the_left(seed: int) -> None:
    y_QP, ignore_QP = matrices(seed)
    truth = Truth.of_matrix(y_QP, ignore_QP)
    for anchors, full_AP in (
        (truth.queries, truth.matrix(torch.float32)),
        (truth.labels, truth.matrix(torch.float32).T),
    ):
        y_AM = anchors.target_AM
        assert torch.equal(y_AM.view(-1)[anchors.place_E], truth.target_E)
        for full, short in zip(full_AP[anchors.ids_A], y_AM, strict=True):
            assert short[: (full > 0).sum()].tolist() == full[full > 0].tolist()
            assert not short[(full > 0).sum() :].any()
        assert y_AM.shape[1] == max(1, int((full_AP > 0).sum(dim=1).max()))
    assert truth.labels.ids_A.tolist() == truth.matrix(torch.float32).any(dim=0).nonzero().flatten().tolist()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_everything_is_made_on_the_device(device: str) -> None:
    rows, columns = np.array([0, 1, 1]), np.array([2, 0, 1])
    batch = Batch(np.arange(2), np.arange(3), (rows, columns, np.ones(3, np.float32)), (np.array([0]), np.array([1])))
    truth = Truth.of_batch(batch, device)
    narrow = [truth.queries.target_AM, truth.labels.target_AM]
    made = [*narrow, truth.matrix(torch.float64), truth.transposed.matrix(torch.float32)]
    assert {tensor.device.type for tensor in made} == {device}
    assert [tuple(x.shape) for x in narrow] == [(2, 2), (3, 1)]
