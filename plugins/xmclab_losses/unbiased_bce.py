"""Binary cross-entropy when labels are missing: a positive stands for those that nobody marked.

Formula:  l(i,l) = a * log(1 + exp(-s_il)) + b * log(1 + exp(s_il)),  t = y_il / p_l
          pw_bce:       a = t, b = max(1 - t, 0)
          unbiased_bce: a = max(t, 2 t - 1), b = max(1 - t, 0)      (form=exact: a = t, b = 1 - t)
Where:    s_QP scores / temperature, p_l <= 1 the propensity of label l: the probability that one of its positives was
          marked. A negative (t = 0) costs the same as in `bce`.
Use when: many true pairs are missing, as for rare labels of large collections, and propensity-scored metrics matter.
          `pw_bce` weighs positives by 1 / p, `unbiased_bce` by 2 / p - 1: the convex stand-in for an estimate of `bce`
          on complete labels. form=exact is that estimate itself; its mean over what was marked is `bce` on complete
          labels, but it has no lower bound, and a model that can fit everything follows it to infinity.
Paper:    Jain et al., "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other Missing Label
          Applications", KDD 2016 (propensities); Qaraei et al., "Convex Surrogates for Unbiased Loss Functions in
          Extreme Classification With Missing Labels", WWW 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from xmclab.api import option
from xmclab_losses.bce import BinaryCrossEntropy


@dataclass
class PropensityWeightedBCE(BinaryCrossEntropy):
    """Propensity-weighted BCE: positives weigh as much as the label is likely to be missing."""

    targets = "inverse_propensity"

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return weighted(s_QP, y_QP, y_QP)

    of_negatives = BinaryCrossEntropy.of_negatives


@dataclass
class UnbiasedBCE(BinaryCrossEntropy):
    """Unbiased BCE: stands for the loss on labels of which none are missing."""

    form: Literal["convex", "exact"] = option("convex", "a convex bounded stand-in, or the unbounded estimate itself")

    targets = "inverse_propensity"

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        if self.form == "exact":
            return super().terms(s_QP, y_QP)
        return weighted(s_QP, y_QP, y_QP.maximum(2 * y_QP - 1))

    of_negatives = BinaryCrossEntropy.of_negatives


def weighted(s_QP: Tensor, t_QP: Tensor, weight_QP: Tensor) -> Tensor:
    """The loss of a positive by its weight, and that of a negative by what t leaves of 1."""
    as_positive_QP = logsigmoid(s_QP.masked_fill(t_QP == 0, 0))  # an absent candidate has s = -inf and t = 0
    return -weight_QP * as_positive_QP - (1 - t_QP).clamp(min=0) * logsigmoid(-s_QP)
