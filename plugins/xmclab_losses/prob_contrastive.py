"""Probabilistic contrastive loss: the likelihood of each pair when relevance decays exponentially with distance.

Formula:  l(i,l) = -log(p_il) / d for a positive, -log(1 - p_il) / d for a negative, p_il = c * exp(d * (s_il - 1))
Where:    s_QP scores, which should be cosines; above 1, where p_il is not a probability, a positive's loss ends at 0
          and a negative's goes on along its tangent. Targets between 0 and 1 mix both.
Use when: the encoder is trained pair by pair on cosines; easy negatives cost next to nothing, as p falls exponentially
          (and exactly nothing below `threshold`). The temperature is 1 unless set.
Paper:    Dahiya et al., "SiameseXML: Siamese Networks meet Extreme Classifiers with 100M Labels", ICML 2021 (divided
          by d and with a threshold as in the authors' program).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from xmclab.api import option
from xmclab.objectives.curves import Curve, CurveLoss


@dataclass
class ProbContrastive(CurveLoss):
    laws_not_kept: ClassVar = {"prior": "its scores are cosines, not log-odds"}

    temperature: float | None = option(1.0, "divides the scores; none: the head's (or objective's) own", gt=0)
    c: float = option(0.75, "probability of a pair at cosine 1", gt=0, lt=1)
    d: float = option(3.0, "how fast the probability falls with the cosine", gt=0)
    threshold: float = option(0.0, "negatives with a smaller loss are ignored", ge=0)

    def positive(self, s_QP: Tensor) -> Curve:
        value_QP = (1 - math.log(self.c) / self.d - s_QP).clamp(min=0)
        return value_QP, -(value_QP > 0).to(s_QP.dtype)

    def negative(self, s_QP: Tensor) -> Curve:
        p_QP = self.c * (self.d * (s_QP.clamp(max=1) - 1)).exp()
        slope_QP = p_QP / (1 - p_QP)
        value_QP = torch.log1p(-p_QP) / -self.d + (s_QP - 1).clamp(min=0) * slope_QP
        easy_QP = value_QP < self.threshold
        return value_QP.masked_fill(easy_QP, 0), slope_QP.masked_fill(easy_QP, 0)
