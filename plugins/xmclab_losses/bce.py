"""Binary cross-entropy: every label is its own yes-or-no question.

Formula:  l(i,l) = log(1 + exp(s_il)) - y_il * s_il
Where:    s_QP scores / temperature, y_QP targets in [0, 1] (soft labels allowed)
Use when: scores should be calibrated one label at a time, or as a small term beside `ds` in the classifier head
          (`ds+bce`). Few positives drown in many negatives: see `ova_n` for the normalised targets.
Paper:    the one-versus-all loss of Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from xmclab.api import BinaryLoss


@dataclass
class BinaryCrossEntropy(BinaryLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        # An absent candidate has s = -inf and y = 0: 0 * -inf must be 0.
        return -logsigmoid(-s_QP) - y_QP * s_QP.masked_fill(y_QP == 0, 0)

    softplus_negatives = True

    def of_pairs(self, s_E: Tensor, y_E: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        return (weight_E * (softplus(s_E, threshold=50) - y_E * s_E)).sum(), weight_E * (s_E.sigmoid() - y_E)
