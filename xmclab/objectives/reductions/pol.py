"""Pick one label: one positive per query, drawn at every step.

Formula:  L = mean_i loss(i,p_i),  p_i drawn from P_i with probability y_ip / sum_p' y_ip'
Where:    P_i positives of anchor i among the candidates, which are the labels of the pool
Use when: you want one positive per query, as in common contrastive training. The loss still sees the other positives:
          `ds` excludes them from the denominator, `supcon` includes them. Its expectation is `psl` on the same pool,
          and so `pal_n` when the pool holds every label.
Paper:    Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import Reduction


@dataclass
class Pol(Reduction):
    """Pick one label: one positive per query, drawn at every step, against the pool."""

    adds_up_to = "one"

    def weights(self, y_QP: Tensor) -> Tensor:
        # Of exponential clocks with rates y, clock p rings first with probability y_p / sum(y).
        clocks_QP = torch.empty_like(y_QP).exponential_() / y_QP
        first_Q1 = clocks_QP.masked_fill(y_QP <= 0, float("inf")).argmin(dim=1, keepdim=True)
        return torch.zeros_like(y_QP).scatter(1, first_Q1, 1).masked_fill(y_QP <= 0, 0)
