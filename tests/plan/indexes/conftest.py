"""A plain sort to compare searches with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def naive_top(q: torch.Tensor, z: torch.Tensor, k: int) -> list[list[int]]:
    """Label ids by descending score, then by id."""
    scores = (q @ z.T).tolist()
    return [sorted(range(len(z)), key=lambda label: (-row[label], label))[:k] for row in scores]


@pytest.fixture(scope="session", name="naive_top")
def naive_top_fixture() -> Callable[..., Any]:
    return naive_top
