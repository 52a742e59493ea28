"""Focal loss: binary cross-entropy weighted by how wrong each cell is.

Formula:  l(i,l) = -alpha * (1 - p)^gamma * log(p) for a positive, -(1 - alpha) * p^gamma * log(1 - p) for a negative
Where:    p = sigmoid(s_il), s_QP scores / temperature; targets between 0 and 1 mix both
Use when: every query has few positives among very many easy negatives, which drown out the hard cells. Positives and
          negatives are treated alike; `asl` down-weights negatives harder. gamma=0 is weighted `bce`.
Paper:    Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xmclab.api import linear, option
from xmclab.objectives.curves import Curve, CurveLoss, mirrored


def focused(s_QP: Tensor, gamma: float, clip: float = 0.0) -> Curve:
    """m^gamma * -log(1 - m), m = max(sigmoid(s) - clip, 0), and its slope by s."""
    p_QP, tiny = s_QP.sigmoid(), torch.finfo(s_QP.dtype).tiny
    q_QP = (-s_QP).sigmoid().clamp(min=tiny)  # 1 - p, which would round to 0
    m_QP = (p_QP - clip).clamp(min=0)
    log_QP = -torch.log1p(-m_QP) if clip else softplus(s_QP, threshold=50)
    focus_QP = m_QP.pow(gamma)
    slope_QP = focus_QP * p_QP * q_QP * (gamma * log_QP / m_QP.clamp(min=tiny) + 1 / (q_QP + clip))
    return focus_QP * log_QP, slope_QP.masked_fill(m_QP == 0, 0)


@dataclass
class Focal(CurveLoss):
    gamma: float = option(2.0, "how strongly easy cells are down-weighted; 0: not at all", ge=0, search=linear(0, 4))
    alpha: float = option(0.25, "weight of positives; negatives get 1 - alpha", ge=0, le=1, search=linear(0.1, 0.9))

    def positive(self, s_QP: Tensor) -> Curve:
        value_QP, slope_QP = mirrored(focused(-s_QP, self.gamma))
        return self.alpha * value_QP, self.alpha * slope_QP

    def negative(self, s_QP: Tensor) -> Curve:
        value_QP, slope_QP = focused(s_QP, self.gamma)
        return (1 - self.alpha) * value_QP, (1 - self.alpha) * slope_QP
