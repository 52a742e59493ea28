"""Softmax cross-entropy with smoothed targets.

Formula:  l(i,p) = logsumexp_l s_il - (1 - e) * s_ip - e * mean_l s_il
Where:    s_QP scores / temperature, e the smoothing, l over all candidates of anchor i
Use when: positives are not certain, or scores should stay calibrated: the best score of a pair is finite. Your own
          soft targets do not need it: multi-class reductions weigh positives by y, which makes `supcon` the
          cross-entropy with a soft distribution. Under `psl`, this is that with e of it spread evenly over the
          candidates.
Paper:    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from xmclab.api import MultiClassLoss, log, option


@dataclass
class SmoothSoftmax(MultiClassLoss):
    smoothing: float = option(0.1, "share of each target spread over all candidates", ge=0, le=1, search=log(1e-3, 0.3))

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        absent_QP = s_QP.isneginf()
        number_Q1 = (~absent_QP).sum(dim=1, keepdim=True).clamp(min=1)
        mean_Q1 = s_QP.masked_fill(absent_QP, 0).sum(dim=1, keepdim=True) / number_Q1
        return s_QP.logsumexp(dim=1, keepdim=True) - self.smoothing * mean_Q1 - (1 - self.smoothing) * s_QP
