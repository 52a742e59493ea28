"""A small batch of scores, and a loss that nothing but its positives may reach."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from xmclab.api import MultiClassLoss


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 7, dtype=torch.float64), torch.rand(5, 7) < 0.4


@dataclass
class OnlyPositives(MultiClassLoss):
    """Infinite away from the positives."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return torch.where(y_QP > 0, s_QP.logsumexp(dim=1, keepdim=True) - s_QP, math.inf)


@pytest.fixture(scope="session", name="only_positives")
def only_positives_fixture() -> type[MultiClassLoss]:
    return OnlyPositives
