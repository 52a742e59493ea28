"""Unbiased BCE: estimates the loss on complete labels from incomplete ones.

Formula:  l(i,l) = a * log(1 + exp(-s_il)) + b * log(1 + exp(s_il)),  t = y_il / p_l
          a = max(t, 2 t - 1), b = max(1 - t, 0)      (form=exact: a = t, b = 1 - t)
Where:    s_QP scores / temperature, p_l <= 1 the propensity of label l: the probability that one of its positives was
          marked. A negative (t = 0) costs the same as in `bce`.
Use when: many true pairs are missing, as for rare labels of large collections, and propensity-scored metrics matter.
          Positives weigh 2 / p - 1 (in `pw_bce` 1 / p): the convex stand-in for an estimate of `bce` on complete
          labels. form=exact is that estimate itself; its mean over what gets marked is `bce` on complete labels, but it
          has no lower bound, and a model that can fit everything follows it to infinity.
Paper:    Qaraei et al., "Convex Surrogates for Unbiased Loss Functions in Extreme Classification With Missing Labels",
          WWW 2021; the propensities of Jain et al., "Extreme Multi-label Loss Functions for Recommendation, Tagging,
          Ranking & Other Missing Label Applications", KDD 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from xmclab.api import option
from xmclab_losses.bce import BinaryCrossEntropy
from xmclab_losses.pw_bce import weighted


@dataclass
class UnbiasedBCE(BinaryCrossEntropy):
    form: Literal["convex", "exact"] = option("convex", "a convex bounded stand-in, or the unbounded estimate itself")

    targets = "inverse_propensity"

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        if self.form == "exact":
            return super().terms(s_QP, y_QP)
        return weighted(s_QP, y_QP, y_QP.maximum(2 * y_QP - 1))

    softplus_negatives = True
