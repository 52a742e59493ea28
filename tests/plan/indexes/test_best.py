"""The best of many scores, chosen in threads."""

from __future__ import annotations

import pytest
import torch

from xmclab.plan.indexes import best


def test_compiled_selection_is_divided_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "WORTH_A_THREAD", 1)
    generator = torch.Generator().manual_seed(0)
    s_QP = torch.randint(0, 5, (7, 90), generator=generator).float()
    rows, labels = torch.tensor([8, 1, 0, 5, 2, 9, 4]), torch.randperm(200, generator=generator)[:90]
    kept = [best.Best(s_QP, 10, 6, compiled) for compiled in (False, True)]
    for each in kept:
        each.keep(rows, s_QP, labels)
        each.keep(rows[:3], s_QP[:3] + 1, labels + 200)
    (ids, scores), (compiled_ids, compiled_scores) = (each.ranked() for each in kept)
    assert torch.equal(ids, compiled_ids)
    assert torch.equal(scores, compiled_scores)
