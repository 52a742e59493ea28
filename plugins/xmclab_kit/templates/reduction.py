"""The positives of a query, weighted by a power of their number.

Formula:  L = mean_i sum_{p in P_i} y_ip / (sum_p' y_ip')^power * loss(i,p)
Where:    P_i positives of anchor i in the pool
Use when: a query with many positives should count for more than one with few
Paper:    -
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xmclab
from torch import Tensor
from xmclab.api import Reduction


@dataclass
class PartName(Reduction):
    """The positives in the pool, weighted by a power of their number."""

    power: float = xmclab.option(0.5, "0: their sum, 1: their mean", ge=0, le=1)

    def weights(self, y_QP: Tensor) -> Tensor:
        """[Q, P] the weight of every pair; 0 unless it is a positive."""
        count_Q1 = y_QP.sum(dim=1, keepdim=True)
        return y_QP / count_Q1.clamp(min=torch.finfo(y_QP.dtype).tiny).pow(self.power)
