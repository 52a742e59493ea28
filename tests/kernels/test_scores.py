"""The compiled passes over scores: what they promise beyond the laws of the plain ones (objectives/test_softmax.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from xmclab.kernels import scores


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scores, "CELLS_OF_SLICE", 3 * 41)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_sums_do_not_depend_on_the_threads() -> None:
    s_QB = 25 * torch.randn(17, 41, generator=torch.Generator().manual_seed(0))  # rows near 0 and others
    outcomes = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        log_sum_Q, log_sum_B = scores.log_sums(s_QB, False, True)
        g_QB = s_QB.clone()
        anchored = (log_sum_Q, torch.ones(17)), (log_sum_B, torch.ones(41))
        outcomes.append([log_sum_Q, log_sum_B, scores.weigh_(g_QB, *anchored, torch.ones(()), False), g_QB])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_rows_near_0_are_told_apart() -> None:
    rows = torch.tensor([[1.0, -60.0, 60.0], [1.0, 2.0, -torch.inf], [61.0, 0.0, 0.0], [0.0, -61.0, 0.0]])
    found = [scores._is_near(row.numpy().view("int32")) for row in rows]
    assert found == [True, True, False, False]
