"""Softmax cross-entropy: each positive competes with every candidate, the anchor's other positives included.

Formula:  l(i,p) = logsumexp_l s_il - s_ip
Where:    s_QP scores / temperature, l over all candidates of anchor i
Use when: anchors have one or two positives; with many, `ds` does not make them compete with each other.
          `supcon` and `softmax` are one pair value under its two names, and the reduction tells them apart:
          averaged over the positives (`psl`, `pal_n`) it is supervised contrastive learning, summed over them
          (`pal`) or read at one of them (`pol`) it is the classic multi-label softmax.
Paper:    Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020 (the form with the sum outside the logarithm);
          Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import MultiClassLoss, Pairs
from xmclab.softmax import exponentials


@dataclass
class SupCon(MultiClassLoss):
    """Supervised contrastive loss: each positive competes with every candidate."""

    rivals = "all"

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.logsumexp(dim=1, keepdim=True) - s_QP

    def value_and_grad(self, s_QP: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        at = rows, _ = pairs.row_E, pairs.column_E
        s_E = s_QP[at]
        e_QP, sum_Q, log_sum_Q = exponentials(s_QP)
        weight_Q = torch.zeros_like(sum_Q).index_add_(0, rows, pairs.weight_E)
        gradient_QP = e_QP.mul_((weight_Q / sum_Q).unsqueeze(1)).index_put_(at, -pairs.weight_E, accumulate=True)
        return (pairs.weight_E * (log_sum_Q[rows] - s_E)).sum(), gradient_QP

    def of_lead(self, lead_E: Tensor) -> tuple[Tensor, Tensor]:
        return -lead_E, torch.ones_like(lead_E)


@dataclass
class Softmax(SupCon):
    """Softmax cross-entropy: the pair value of `supcon` under its classic name."""
