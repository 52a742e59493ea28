"""The order of results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xmclab.plan.indexes.order import best


def test_the_best_are_sorted_by_score_then_id_and_padded() -> None:
    ids, scores = best(torch.tensor([[4, 1, -1, 7, 2]]), torch.tensor([[0.9, 0.5, 3.0, 0.5, 0.1]]), 4)
    assert (ids.tolist(), scores.tolist()) == ([[4, 1, 7, 2]], [[pytest.approx(0.9), 0.5, 0.5, pytest.approx(0.1)]])
    ids, scores = best(torch.tensor([[4, -1, -1]]), torch.tensor([[0.5, 1.0, 2.0]]), 3)
    assert (ids.tolist(), scores.tolist()) == ([[4, -1, -1]], [[0.5, -np.inf, -np.inf]])
