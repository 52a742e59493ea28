"""Triplet loss with online hard negatives: a positive must lead the anchor's hardest negatives by a margin.

Formula:  l(i,p) = mean_{n in H_i} max(0, margin + s_in - s_ip)
          softmax=t: l(i,p) = (1 / negatives) sum_{n in V_ip} w_n (margin + s_in - s_ip),  w = softmax_{V_ip}(s_in / t)
          positives=m: l(i,p) times |P_i| / m for the m lowest scoring positives of anchor i, 0 for its other ones
Where:    s_QP scores / temperature, H_i the highest scoring `negatives` of anchor i's negatives (pick=random: that
          many drawn at every step, from torch's global generator), P_i its positives among the candidates,
          V_ip the violators: those of H_i with margin + s_in > s_ip
Use when: scores are cosines (dual encoders) and pairs that are apart already should have no gradient. The margin is in
          units of the scores, so the temperature is 1 unless set. An anchor without negatives has loss 0.
          NGAME's encoder: `pol(triplet(negatives=10, softmax=0.1))`. Its classifier: `psl(triplet(margin=0.2,
          negatives=5, positives=3, softmax=1))`, where the factor |P_i| / m makes each anchor, under weights 1 / |P_i|,
          the mean over m x `negatives` cells, as absent ones add 0. The gradient also flows through the weights.
          The authors' program also counts negatives of the encoder that are apart, with a weight of exp(0).
Paper:    Dahiya et al., "NGAME: Negative Mining-aware Mini-batching for Extreme Classification", WSDM 2023; the weights
          and the lowest positives are the authors' program's.
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
    softmax: float | None = option(
        None, "temperature of a softmax that weighs the negatives within the margin; none: equal weights", gt=0
    )
    positives: int = option(0, "lowest-scoring positives of an anchor that count; 0: all", ge=0)

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
        if self.softmax is None:
            count_Q1 = (~absent_QK).sum(dim=1, keepdim=True).clamp(min=1)
            l_QP = (_sums(rivals_QK, ahead_QP) - ahead_QP * lead_QP) / count_Q1
        else:
            share_QK = (rivals_QK / self.softmax).exp()  # 1 for the hardest, which is ahead if any is
            total_QP = _sums(share_QK, ahead_QP).clamp(min=1)
            mean_QP = _sums(share_QK * rivals_QK, ahead_QP) / total_QP
            l_QP = (mean_QP - lead_QP).masked_fill(ahead_QP == 0, 0) / self.negatives
        return self._of_lowest(l_QP, s_QP, y_QP) if self.positives else l_QP

    def _rivals(self, s_QP: Tensor) -> Tensor:
        """The chosen negatives of each anchor by descending score; -inf where there are fewer."""
        number = min(self.negatives, s_QP.shape[1])
        if self.pick == "hardest":
            return s_QP.topk(number, dim=1).values
        draws_QP = torch.rand_like(s_QP).masked_fill(s_QP.isneginf(), -1)
        return s_QP.gather(1, draws_QP.topk(number, dim=1).indices).sort(dim=1, descending=True).values

    def _of_lowest(self, l_QP: Tensor, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        """The losses of the lowest positives of each anchor, scaled so that those of `psl` add up to their mean."""
        positive_QP = y_QP > 0
        number = min(self.positives, s_QP.shape[1])
        lowest_QM = s_QP.detach().masked_fill(~positive_QP, float("inf")).topk(number, dim=1, largest=False).indices
        counts_QP = torch.zeros_like(positive_QP).scatter(1, lowest_QM, True)
        scale_Q1 = positive_QP.to(l_QP.dtype).sum(dim=1, keepdim=True) / self.positives
        return (scale_Q1 * l_QP).masked_fill(~counts_QP, 0)


def _sums(x_QK: Tensor, first_QP: Tensor) -> Tensor:
    """For every candidate, the sum over the given number of first entries of its row."""
    return pad(x_QK.cumsum(dim=1), (1, 0)).gather(1, first_QP)
