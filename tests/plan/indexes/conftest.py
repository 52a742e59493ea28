"""A plain sort to compare searches with, and searches with and without the compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.plan.indexes import exact, lists


def naive_top(q: torch.Tensor, z: torch.Tensor, k: int) -> list[list[int]]:
    """Label ids by descending score, then by id."""
    scores = (q @ z.T).tolist()
    return [sorted(range(len(z)), key=lambda label: (-row[label], label))[:k] for row in scores]


@pytest.fixture(scope="session", name="naive_top")
def naive_top_fixture() -> Callable[..., Any]:
    return naive_top


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search with and without the compiled loop, whatever the size."""
    for module in (exact, lists):
        monkeypatch.setattr(module, "accelerated", lambda entries: request.param)
