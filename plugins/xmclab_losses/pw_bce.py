"""Propensity-weighted BCE: positives weigh more the likelier their label is to be missing.

Formula:  l(i,l) = t * log(1 + exp(-s_il)) + max(1 - t, 0) * log(1 + exp(s_il)),  t = y_il / p_l
Where:    s_QP scores / temperature, p_l <= 1 the propensity of label l: the probability that one of its positives was
          marked. A negative (t = 0) costs the same as in `bce`.
Use when: many true pairs are missing, as for rare labels of large collections, and propensity-scored metrics matter.
          Positives weigh 1 / p; `unbiased_bce` gives them 2 / p - 1.
Paper:    Jain et al., "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other Missing Label
          Applications", KDD 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from xmclab_losses.bce import BinaryCrossEntropy


@dataclass
class PropensityWeightedBCE(BinaryCrossEntropy):
    targets = "inverse_propensity"

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return weighted(s_QP, y_QP, y_QP)

    softplus_negatives = True


def weighted(s_QP: Tensor, t_QP: Tensor, weight_QP: Tensor) -> Tensor:
    """The loss of a positive times t, plus that of a negative times max(1 - t, 0)."""
    as_positive_QP = logsigmoid(s_QP.masked_fill(t_QP == 0, 0))  # an absent candidate has s = -inf and t = 0
    return -weight_QP * as_positive_QP - (1 - t_QP).clamp(min=0) * logsigmoid(-s_QP)
