"""One versus all: a binary loss on every cell.

Formula:  L = mean_{i,l} loss(i,l)          (cells=sum: the plain sum)
Where:    l over all labels, for any query i
Use when: the loss is binary. Papers print the sum, and Renee's program trains on it; the default is the mean. Tune
          learning rates to `cells`: the mean divides the sum by the number of cells.
Paper:    Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from xmclab.api import Reduction, option


@dataclass
class Ova(Reduction):
    """One versus all: a binary loss on every cell of all labels."""

    needs = "all"
    accepts = "binary"
    adds_up_to = "cells"

    cells: Literal["mean", "sum"] = option("mean", "average the cells or add them up")

    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP.new_ones(()).expand_as(y_QP)

    def normaliser(self, w_QP: Tensor) -> Tensor:
        return w_QP.new_ones(()) if self.cells == "sum" else (w_QP > 0).sum().clamp(min=1)

    def cell_weight(self, cells: int) -> float:
        return 1.0 if self.cells == "sum" else 1 / max(cells, 1)
