"""Stochastic negative mining: each positive competes with the hardest of negatives drawn at random.

Formula:  l(i,p) = log(1 + sum_{n in T_i} exp(s_in - s_ip))
Where:    s_QP scores / temperature, B_i `drawn` negatives of anchor i, uniformly from those among the candidates and
          without replacement (0: all of them), from torch's global generator, at every step; T_i the highest scoring
          `hardest` of B_i
Use when: the easiest negatives of a large pool, or of all labels (`pal_n`), should not count, and not only the very
          hardest, which may be unmarked positives, either. Other positives leave the denominator. With all negatives
          among the hardest it is `ds`; with drawn <= hardest, a softmax over random negatives. An anchor without
          negatives has loss 0.
Paper:    Reddi et al., "Stochastic Negative Mining for Learning with Large Output Spaces", AISTATS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from xmclab.api import MultiClassLoss, one_of, option


@dataclass
class StochasticNegativeMining(MultiClassLoss):
    drawn: int = option(0, "negatives drawn per anchor at every step; 0: all", ge=0)
    hardest: int = option(10, "highest-scoring ones of these that count", ge=1, search=one_of(5, 10, 20, 50))

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        rivals_QK = s_QP.masked_fill(y_QP > 0, float("-inf"))
        if self.drawn:
            draws_QP = torch.rand_like(s_QP).masked_fill(rivals_QK.isneginf(), -1)
            rivals_QK = rivals_QK.gather(1, draws_QP.topk(min(self.drawn, s_QP.shape[1]), dim=1).indices)
        hardest_QK = rivals_QK.topk(min(self.hardest, rivals_QK.shape[1]), dim=1).values
        return -logsigmoid(s_QP - hardest_QK.logsumexp(dim=1, keepdim=True))
