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
from torch.nn.functional import logsigmoid, softplus

from xmclab.api import MultiClassLoss, Pairs


@dataclass
class DecoupledSoftmax(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        negatives_Q1 = s_QP.masked_fill(y_QP > 0, float("-inf")).logsumexp(dim=1, keepdim=True)
        return -logsigmoid(s_QP - negatives_Q1)

    def value_and_grad(self, s_E: Tensor, negatives_Q: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        lead_E = s_E - negatives_Q.index_select(0, pairs.row_E)
        pull_E = pairs.weight_E * (-lead_E).sigmoid()
        pull_Q = torch.zeros_like(negatives_Q).index_add_(0, pairs.row_E, pull_E)
        return (pairs.weight_E * softplus(-lead_E, threshold=50)).sum(), -pull_E, pull_Q
