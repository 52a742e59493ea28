"""Supervised contrastive loss: each positive competes with every candidate.

Formula:  l(i,p) = logsumexp_l s_il - s_ip
Where:    s_QP scores / temperature, l over all candidates of anchor i, its other positives included
Use when: anchors have one or two positives; with many, `ds` does not make them compete with each other. The same pair
          value is called `softmax` too, and the reduction tells them apart: averaged over the positives (`psl`,
          `pal_n`) it is supervised contrastive learning, summed over them (`pal`) or read at one of them (`pol`) it is
          the classic multi-label softmax.
Paper:    Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020 (the form with the sum outside the logarithm).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import MultiClassLoss, Pairs
from xmclab.objectives.softmax import log_sum_exp_by_row


@dataclass
class SupCon(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.logsumexp(dim=1, keepdim=True) - s_QP

    def value_and_grad(self, s_E: Tensor, negatives_Q: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight_E = pairs.row_E, pairs.weight_E
        all_Q = torch.logaddexp(negatives_Q, log_sum_exp_by_row(s_E, rows, len(negatives_Q)))
        all_Q = all_Q.clamp_(min=torch.finfo(all_Q.dtype).min)  # an anchor without candidates
        weight_Q = torch.zeros_like(all_Q).index_add_(0, rows, weight_E)
        lag_E = all_Q.index_select(0, rows) - s_E
        slope_E = weight_Q.index_select(0, rows) * (-lag_E).exp_() - weight_E
        return (weight_E * lag_E).sum(), slope_E, weight_Q * (negatives_Q - all_Q).exp()
