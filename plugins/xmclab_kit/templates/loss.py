"""Each positive must lead the hardest negative by a margin.

Formula:  l(i,p) = max(0, margin + max_{n not in P_i} s_in - s_ip)
Where:    s_QP scores / temperature, P_i positives of anchor i among the candidates
Use when: only the worst mistake of an anchor should count
Paper:    -
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xmclab
from torch import Tensor
from xmclab.api import MultiClassLoss


@dataclass
class PartName(MultiClassLoss):
    """Each positive must lead the hardest negative by a margin."""

    margin: float = xmclab.option(1.0, "margin by which a positive must lead", ge=0)

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        """[Q, P] the loss of every pair: the reduction weighs and sums them."""
        rivals_QP = s_QP.masked_fill(y_QP > 0, -torch.inf)
        hardest_Q1 = rivals_QP.amax(dim=1, keepdim=True)
        return (self.margin + hardest_Q1 - s_QP).clamp(min=0)
