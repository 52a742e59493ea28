"""Rows of a data set that is learned in a second, and a loss of a notebook."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from xmclab.api import MultiClassLoss, option

COLOURS, THINGS = ("red", "green", "blue", "grey"), ("car", "tree", "house", "sky", "boat")
ROWS = [(f"{colour} {thing}", [colour, thing]) for colour in COLOURS for thing in THINGS]


@dataclass
class PairwiseMargin(MultiClassLoss):
    """Logistic loss of a positive against the anchor's hardest negative."""

    margin: float = option(0.1, "margin", ge=0)

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        hardest_Q1 = s_QP.masked_fill(y_QP > 0, -torch.inf).amax(dim=1, keepdim=True)
        return torch.nn.functional.softplus(hardest_Q1 - s_QP + self.margin)


@pytest.fixture(scope="session")
def rows() -> list[tuple[str, list[str]]]:
    return ROWS


@pytest.fixture(scope="session")
def margin_loss() -> type[PairwiseMargin]:
    return PairwiseMargin
