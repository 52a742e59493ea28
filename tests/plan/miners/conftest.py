"""Small random views to mine in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import View


def random_case(seed: int) -> tuple[np.random.Generator, View, sp.csr_array]:
    """A view with whole-number vectors (so that scores are exact and often equal) and pairs to exclude."""
    rng = np.random.default_rng(seed)
    num, labels = rng.integers(1, 12, size=2)
    vectors = [rng.integers(-3, 4, size=(n, 3)).astype(np.float32) for n in (num, labels)]
    exclude = rng.random((num, labels)) < rng.choice([0.0, 0.3, 0.9, 1.0])
    return rng, View(0, *vectors), sp.csr_array(exclude)


@pytest.fixture(scope="session", name="random_case")
def random_case_fixture() -> Callable[..., Any]:
    return random_case
