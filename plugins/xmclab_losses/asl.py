"""Asymmetric loss: a focal loss that down-weights negatives harder and drops the easiest.

Formula:  l(i,l) = -(1 - p)^gamma_pos * log(p) for a positive, -m^gamma_neg * log(1 - m) for a negative,
          m = max(p - clip, 0)
Where:    p = sigmoid(s_il), s_QP scores / temperature; targets between 0 and 1 mix both
Use when: every query has few positives among very many easy negatives, some of which may be unmarked positives:
          negatives below `clip` cost nothing, very confident ones little. gamma_pos = gamma_neg = clip = 0 is `bce`.
Paper:    Ridnik et al., "Asymmetric Loss For Multi-Label Classification", ICCV 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from xmclab.api import linear, option
from xmclab.objectives.curves import Curve, CurveLoss, mirrored
from xmclab_losses.focal import focused


@dataclass
class Asymmetric(CurveLoss):
    laws_not_kept: ClassVar = {"prior": "it weighs negatives less than positives, so that rare labels score too high"}

    gamma_pos: float = option(
        1.0, "how strongly easy positives are down-weighted; 0: not at all", ge=0, search=linear(0, 2)
    )
    gamma_neg: float = option(
        4.0, "how strongly easy negatives are down-weighted; 0: not at all", ge=0, search=linear(0, 6)
    )
    clip: float = option(0.05, "subtracted from the probability of a negative", ge=0, lt=1, search=linear(0, 0.2))

    def positive(self, s_QP: Tensor) -> Curve:
        return mirrored(focused(-s_QP, self.gamma_pos))

    def negative(self, s_QP: Tensor) -> Curve:
        return focused(s_QP, self.gamma_neg, self.clip)
