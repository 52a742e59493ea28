"""Pick one label: one positive per query, out of those that it drew for the pool.

Formula:  L = mean_i loss(i,p_i),  p_i drawn from D_i with probability y_ip / sum_p' y_ip'
Where:    D_i what query i itself drew: at most beta of its positives, uniformly; all of them if the pool is every label
          label to query: D_p the queries that drew label p; anchors that drew nothing, or were not drawn, do not count
Use when: you want one positive per query, as in common contrastive training. The loss still sees the other positives in
          the pool: `ds` excludes them from the denominator, `supcon` includes them. With targets of 0 and 1 every
          positive of a query is equally likely, whatever other queries drew: on the same candidates, its expectation
          is `pal_n`.
Paper:    Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import Reduction


@dataclass
class Pol(Reduction):
    """Pick one label: one positive that the query drew for the pool, against the pool."""

    adds_up_to = "one"
    among = "drawn"

    def weights(self, y_QP: Tensor) -> Tensor:
        # Of exponential clocks with rates y, clock p rings first with probability y_p / sum(y).
        clocks_QP = torch.empty_like(y_QP).exponential_() / y_QP
        first_Q1 = clocks_QP.masked_fill(y_QP <= 0, float("inf")).argmin(dim=1, keepdim=True)
        return torch.zeros_like(y_QP).scatter(1, first_Q1, 1).masked_fill(y_QP <= 0, 0)
