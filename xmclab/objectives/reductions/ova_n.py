"""One versus all, normalised: the targets of a query add up to one, however many positives it has.

Formula:  L = mean_{i,l} t_il * loss(i,l; 1) + (1 - t_il) * loss(i,l; 0),  t_il = y_il / |P_i|
Where:    l over all labels, P_i positives of query i (y > 0), loss(i,l; y) the binary loss for target y
Use when: the loss is binary and queries with many positives should not dominate.
Paper:    Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from xmclab.objectives.reductions.ova import Ova


@dataclass
class OvaN(Ova):
    """One versus all with the targets of a query divided by its number of positives."""

    def targets(self, y_QP: Tensor) -> Tensor:
        return y_QP / (y_QP > 0).sum(dim=1, keepdim=True).clamp(min=1)
