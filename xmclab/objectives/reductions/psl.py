"""Pick some labels: the mean over the positives that are in the pool, against the pool.

Formula:  L = mean_i sum_{p in P_i} (y_ip / sum_p' y_ip') * loss(i,p)
Where:    P_i positives of anchor i in the pool, from any query; candidates are the labels of the pool
Use when: there are too many labels for `pal_n`, which it equals when the pool holds every label.
Paper:    UniDEC, WWW 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import Reduction


@dataclass
class Psl(Reduction):
    """Pick some labels: the mean over the positives in the pool, against the pool."""

    adds_up_to = "one"

    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP / y_QP.sum(dim=1, keepdim=True).clamp(min=torch.finfo(y_QP.dtype).tiny)
