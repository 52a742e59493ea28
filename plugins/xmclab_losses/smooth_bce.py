"""Label smoothing: no answer is quite certain, so scores need not run off.

Formula:  smooth_bce:     l(i,l) = log(1 + exp(s_il)) - t_il * s_il,  t_il = (1 - e) * y_il + e / 2
          smooth_softmax: l(i,p) = logsumexp_l s_il - (1 - e) * s_ip - e * mean_l s_il
Where:    s_QP scores / temperature, e the smoothing, l over all candidates of anchor i
Use when: marks are noisy, or scores should stay calibrated: the best score of a pair is finite. Soft targets of your
          own need neither: binary losses take any y in [0, 1], and multi-class reductions weigh positives by y, which
          makes `supcon` the cross-entropy with a soft distribution. Under `psl`, `smooth_softmax` is that with e of it
          spread evenly over the candidates.
Paper:    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus

from xmclab.api import MultiClassLoss, option
from xmclab.objectives.curves import Curve, CurveLoss, mirrored


@dataclass
class SmoothBCE(CurveLoss):
    """Binary cross-entropy with smoothed targets."""

    smoothing: float = option(0.1, "part of each target that goes half and half to both answers", ge=0, le=1)

    def positive(self, s_QP: Tensor) -> Curve:
        return mirrored(self.negative(-s_QP))

    def negative(self, s_QP: Tensor) -> Curve:
        absent_QP, other = s_QP.isneginf(), self.smoothing / 2
        s_QP = s_QP.masked_fill(absent_QP, 0)
        value_QP = (1 - other) * softplus(s_QP, threshold=50) + other * softplus(-s_QP, threshold=50)
        return value_QP.masked_fill(absent_QP, 0), (s_QP.sigmoid() - other).masked_fill(absent_QP, 0)


@dataclass
class SmoothSoftmax(MultiClassLoss):
    """Softmax cross-entropy with smoothed targets."""

    smoothing: float = option(0.1, "part of each target that is spread over all candidates", ge=0, le=1)

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        absent_QP = s_QP.isneginf()
        number_Q1 = (~absent_QP).sum(dim=1, keepdim=True).clamp(min=1)
        mean_Q1 = s_QP.masked_fill(absent_QP, 0).sum(dim=1, keepdim=True) / number_Q1
        return s_QP.logsumexp(dim=1, keepdim=True) - self.smoothing * mean_Q1 - (1 - self.smoothing) * s_QP
