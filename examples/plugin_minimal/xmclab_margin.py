"""A loss in one file: the multi-class margin loss as an xmclab plugin.

As a distribution: `pip install ./examples/plugin_minimal`, then `xmclab run loss.de=margin`.
As a file: `xmclab run plugin=examples/plugin_minimal/xmclab_margin.py loss.de=margin`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import xmclab
from xmclab.api import MultiClassLoss


@dataclass
class Margin(MultiClassLoss):
    """Each positive must lead the hardest negative by a margin.

    Formula:  l(i,p) = max(0, margin + max_{n not in P_i} s_in - s_ip)
    """

    margin: float = xmclab.option(1.0, "required lead of a positive", ge=0)

    def terms(self, s_QP: torch.Tensor, y_QP: torch.Tensor) -> torch.Tensor:
        hardest_Q1 = s_QP.masked_fill(y_QP > 0, -torch.inf).amax(dim=1, keepdim=True)
        return (self.margin + hardest_Q1 - s_QP).clamp(min=0)


@xmclab.hookimpl
def xmclab_parts() -> list[xmclab.PartRef]:
    return [xmclab.part("loss", "margin", Margin)]
