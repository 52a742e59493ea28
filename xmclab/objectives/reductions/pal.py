"""Pick all labels: the loss of every positive, added up.

Formula:  L = mean_i sum_{p in P_i} y_ip * loss(i,p)
Where:    P_i all positives of anchor i; candidates are all labels
Use when: queries with more positives should count more: n positives weigh n times as much as one.
Paper:    Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from xmclab.api import Reduction


@dataclass
class Pal(Reduction):
    """Pick all labels: the sum over all positives, against all labels."""

    needs = "all"
    adds_up_to = "targets"

    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP
