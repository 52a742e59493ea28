"""Triplet loss with online hard negatives: a positive must lead the anchor's hardest negatives by a margin.

Formula:  l(i,p) = mean_{n in H_i} max(0, margin + s_in - s_ip)
Where:    s_QP scores / temperature, H_i the highest scoring `negatives` of anchor i's negatives (pick=random: that
          many drawn at every step, from torch's global generator)
Use when: scores are cosines (dual encoders) and pairs that are apart already should have no gradient. The margin is in
          units of the scores, so the temperature is 1 unless set. An anchor without negatives has loss 0.
Paper:    Dahiya et al., "NGAME: Negative Mining-aware Mini-batching for Extreme Classification", WSDM 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from xmclab.api import MultiClassLoss, linear, option


@dataclass
class Triplet(MultiClassLoss):
    temperature: float | None = option(1.0, "divides the scores; none: the head's (or objective's) own", gt=0)
    margin: float = option(0.3, "margin by which a positive must lead a negative", ge=0, search=linear(0.05, 1))
    negatives: int = option(3, "negatives per anchor", ge=1)
    pick: Literal["hardest", "random"] = option("hardest", "which negatives to use")

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        rivals_QK = self._rivals(s_QP.masked_fill(y_QP > 0, float("-inf")))
        absent_QK = rivals_QK.isneginf()
        # Scores count from the hardest negative, so that large ones cancel before they are added up.
        top_Q1 = rivals_QK[:, :1].detach().masked_fill(absent_QK[:, :1], 0)
        lead_QP = (s_QP - top_Q1 - self.margin).contiguous()
        rivals_QK = (rivals_QK - top_Q1).masked_fill(absent_QK, 0)
        # The sorted rivals ahead of a candidate are a prefix: their sum is looked up, so no matrix has a third axis.
        order_QK = (-rivals_QK).masked_fill(absent_QK, float("inf")).detach()
        ahead_QP = torch.searchsorted(order_QK, -lead_QP.detach())
        sums_QP = pad(rivals_QK.cumsum(dim=1), (1, 0)).gather(1, ahead_QP)
        count_Q1 = (~absent_QK).sum(dim=1, keepdim=True).clamp(min=1)
        return (sums_QP - ahead_QP * lead_QP) / count_Q1

    def _rivals(self, s_QP: Tensor) -> Tensor:
        """The chosen negatives of each anchor by descending score; -inf where there are fewer."""
        number = min(self.negatives, s_QP.shape[1])
        if self.pick == "hardest":
            return s_QP.topk(number, dim=1).values
        draws_QP = torch.rand_like(s_QP).masked_fill(s_QP.isneginf(), -1)
        return s_QP.gather(1, draws_QP.topk(number, dim=1).indices).sort(dim=1, descending=True).values
