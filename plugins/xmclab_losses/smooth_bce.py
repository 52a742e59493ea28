"""Binary cross-entropy with smoothed targets.

Formula:  l(i,l) = log(1 + exp(s_il)) - t_il * s_il,  t_il = (1 - e) * y_il + e / 2
Where:    s_QP scores / temperature, y_QP targets in [0, 1], e the smoothing
Use when: labels are noisy, or scores should stay calibrated: the best score of a pair is finite. Your own soft targets
          do not need it: binary losses take any y in [0, 1].
Paper:    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus

from xmclab.api import log, option
from xmclab.objectives.curves import Curve, CurveLoss, mirrored


@dataclass
class SmoothBCE(CurveLoss):
    smoothing: float = option(
        0.1, "share of each target split evenly between both answers", ge=0, le=1, search=log(1e-4, 0.3)
    )

    def positive(self, s_QP: Tensor) -> Curve:
        return mirrored(self.negative(-s_QP))

    def negative(self, s_QP: Tensor) -> Curve:
        absent_QP, other = s_QP.isneginf(), self.smoothing / 2
        s_QP = s_QP.masked_fill(absent_QP, 0)
        value_QP = (1 - other) * softplus(s_QP, threshold=50) + other * softplus(-s_QP, threshold=50)
        return value_QP.masked_fill(absent_QP, 0), (s_QP.sigmoid() - other).masked_fill(absent_QP, 0)
