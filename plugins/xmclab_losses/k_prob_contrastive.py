"""Probabilistic contrastive loss against the hardest negatives: `prob_contrastive`, with few negatives of an anchor.

Formula:  l(i,p) = positive(s_ip) + sum_{n in H_i} negative(s_in), the two curves being those of `prob_contrastive`
Where:    s_QP scores, which should be cosines; H_i the highest scoring `negatives` of anchor i's negatives
Use when: `prob_contrastive` spends itself on negatives that are apart already. Under `psl`, an anchor's positives count
          for their mean and its negatives once. An anchor without negatives has the loss of its positives alone. The
          temperature is 1 unless set.
Paper:    Dahiya et al., "SiameseXML: Siamese Networks meet Extreme Classifiers with 100M Labels", ICML 2021; c, d and
          the number of negatives are the authors' program's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import MultiClassLoss, option
from xmclab_losses.prob_contrastive import ProbContrastive


@dataclass
class KProbContrastive(MultiClassLoss):
    temperature: float | None = option(1.0, "divides the scores; none: the head's (or objective's) own", gt=0)
    c: float = option(0.9, "probability of a pair at cosine 1", gt=0, lt=1)
    d: float = option(1.5, "how fast the probability falls with the cosine", gt=0)
    negatives: int = option(2, "highest-scoring negatives of an anchor that count", ge=1)

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        curves, positive_QP = ProbContrastive(c=self.c, d=self.d), y_QP > 0
        rivals_QP = s_QP.masked_fill(positive_QP, float("-inf"))
        hardest_QK = rivals_QP.topk(min(self.negatives, s_QP.shape[1]), dim=1).values
        of_negatives_Q = curves.terms(hardest_QK, torch.zeros_like(hardest_QK)).sum(dim=1)
        s_QP = s_QP.masked_fill(~positive_QP, 0)
        return curves.terms(s_QP, torch.ones_like(s_QP)) + of_negatives_Q.unsqueeze(1)
