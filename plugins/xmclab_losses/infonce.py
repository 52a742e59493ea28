"""InfoNCE with an additive margin: each positive must win against the negatives even when handicapped.

Formula:  l(i,p) = logaddexp(s_ip - margin, logsumexp_{n not in P_i} s_in) - (s_ip - margin)
Where:    s_QP scores / temperature, P_i positives of anchor i among the candidates. The margin is in units of s_QP: a
          margin of 0.1 in the cosine at temperature 0.05 is margin=2.
Use when: `ds`, which it equals at margin 0, is satisfied too soon: positives then keep pulling until they lead by more.
Paper:    van den Oord et al., "Representation Learning with Contrastive Predictive Coding", 2018; the margin as in
          Yang et al., "Improving Multilingual Sentence Embedding using Bi-directional Dual Encoder with Additive
          Margin Softmax", IJCAI 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from xmclab.api import Pairs, linear, option
from xmclab_losses.ds import DecoupledSoftmax


@dataclass
class InfoNCE(DecoupledSoftmax):
    margin: float = option(1.0, "subtracted from the score of a positive", ge=0, search=linear(0, 3))

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP - self.margin * (y_QP > 0), y_QP)

    def value_and_grad(self, s_E: Tensor, negatives_Q: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        return super().value_and_grad(s_E - self.margin, negatives_Q, pairs)
