"""Views with clusters to be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xmclab.api import View
from xmclab.plan.samplers import cluster as cluster_module

ROWS = np.arange(128)


def clustered_view(epoch: int = 0) -> View:
    rng = np.random.default_rng(epoch)
    vectors = np.eye(8)[rng.integers(8, size=len(ROWS))] + 0.1 * rng.normal(size=(len(ROWS), 8))
    return View(epoch, vectors.astype(np.float32), vectors.astype(np.float32))


@pytest.fixture(scope="session", name="clustered_view")
def clustered_view_fixture() -> Callable[..., Any]:
    return clustered_view


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of leaves of the clusterings computed so far."""
    calls: list[int] = []
    original = cluster_module.balanced_clusters

    def counting(x: np.ndarray, rows: np.ndarray, leaves: int, rng: np.random.Generator) -> list[np.ndarray]:
        calls.append(leaves)
        return original(x, rows, leaves, rng)

    monkeypatch.setattr(cluster_module, "balanced_clusters", counting)
    return calls
