"""Pick some labels: the mean over the positives that are in the pool, against the pool.

Formula:  L = mean_i sum_{p in P_i} (y_ip / sum_p' y_ip') * loss(i,p)          (anchors=sum: sum_i instead of mean_i)
Where:    P_i positives of anchor i in the pool, from any query; candidates are the labels of the pool
Use when: there are too many labels for `pal_n`, which it equals when the pool holds every label. The paper prints
          the sum over anchors and its authors' program averages, as is the default: tune learning rates, and the
          weights of other terms, to `anchors`.
Paper:    UniDEC, WWW 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from xmclab.api import Reduction, option


@dataclass
class Psl(Reduction):
    """Pick some labels: the mean over the positives in the pool, against the pool."""

    adds_up_to = "one"

    anchors: Literal["mean", "sum"] = option("mean", "average the anchors that have a positive, or add them up")

    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP / y_QP.sum(dim=1, keepdim=True).clamp(min=torch.finfo(y_QP.dtype).tiny)

    def normaliser(self, w_QP: Tensor) -> Tensor:
        return w_QP.new_ones(()) if self.anchors == "sum" else (w_QP > 0).any(dim=1).sum().clamp(min=1)
