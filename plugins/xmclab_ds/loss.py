"""Decoupled softmax: each positive competes with the negatives only.

Formula:  l(i,p) = logaddexp(s_ip, logsumexp_{n not in P_i} s_in) - s_ip
                 = -log sigmoid(s_ip - logsumexp_{n not in P_i} s_in)
Where:    s_QP scores / temperature, P_i positives of anchor i among the candidates
Use when: an anchor has many positives, which `supcon` would push against each other; equals it when there is one.
          An anchor without negatives has loss 0. Never above `supcon`.
Paper:    Gupta et al., "Dual-Encoders for Extreme Multi-Label Classification", ICLR 2024;
          the loss of both heads in UniDEC, WWW 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from xmclab.api import MultiClassLoss, Pairs
from xmclab.softmax import exponentials


@dataclass
class DecoupledSoftmax(MultiClassLoss):
    rivals = "negatives"

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        negatives_Q1 = s_QP.masked_fill(y_QP > 0, float("-inf")).logsumexp(dim=1, keepdim=True)
        return -logsigmoid(s_QP - negatives_Q1)

    def value_and_grad(self, s_QP: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        at = rows, _ = pairs.row_E, pairs.column_E
        s_E = s_QP[at]
        e_QP, sum_Q, log_sum_Q = exponentials(s_QP.index_put_(at, s_E.new_full((), float("-inf"))))
        lead_E = s_E - log_sum_Q[rows]
        pull_E = pairs.weight_E * (-lead_E).sigmoid()
        pull_Q = torch.zeros_like(sum_Q).index_add_(0, rows, pull_E)
        gradient_QP = e_QP.mul_((pull_Q / sum_Q).unsqueeze(1)).index_put_(at, -pull_E)
        return -(pairs.weight_E * logsigmoid(lead_E)).sum(), gradient_QP

    def of_lead(self, lead_E: Tensor) -> tuple[Tensor, Tensor]:
        return -logsigmoid(lead_E), (-lead_E).sigmoid()
