"""Soft top-k: a positive must be among the k best, in any place.

Formula:  l(i,p) = -log sigmoid(s_ip + t_i),  t_i such that sum_l sigmoid(s_il + t_i) = k
Where:    s_QP scores / temperature, l over all candidates of anchor i. With at most k candidates the loss is 0.
Use when: precision among the first k is what counts. The higher k, the less a positive is pushed above others; `supcon`
          and `ds` aim for the first place.
Paper:    Gupta et al., "Dual-Encoders for Extreme Multi-Label Classification", ICLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from xmclab.api import MultiClassLoss, one_of, option

NEWTON_STEPS = 6  # four or five reach the last digit of float64 for any scores


@dataclass
class SoftTopK(MultiClassLoss):
    k: int = option(5, "a positive should rank among the first k", ge=1, search=one_of(1, 3, 5, 10))

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        threshold_Q1: Tensor = _Threshold.apply(s_QP, self.k)  # type: ignore[no-untyped-call]
        return -logsigmoid(s_QP + threshold_Q1)


class _Threshold(torch.autograd.Function):
    """t_i with sum_l sigmoid(s_il + t_i) = k; as the sum is constant, dt/ds_l = -sigmoid'_l / (sum of all sigmoid')."""

    @staticmethod
    def forward(ctx: Any, s_QP: Tensor, k: int) -> Tensor:
        t_Q1 = threshold(s_QP, k)
        ctx.save_for_backward(s_QP, t_Q1)
        return t_Q1

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream_Q1: Tensor) -> tuple[Tensor | None, ...]:
        s_QP, t_Q1 = ctx.saved_tensors
        x_QP = s_QP + t_Q1
        log_slope_QP = logsigmoid(x_QP) + logsigmoid(-x_QP)
        share_QP = log_slope_QP.clamp_(min=torch.finfo(x_QP.dtype).min).softmax(dim=1)
        return share_QP * -upstream_Q1, None


def threshold(s_QP: Tensor, k: int) -> Tensor:
    """Newton's method for log sum_{l not among the k best} sigmoid(s_il + t) = log sum_{the k best} sigmoid(-s_il - t).

    Both sides measure by how much the sum exceeds k. Their difference is close to a line, and where all sigmoids are
    close to their exponentials it is one: its root is the start.
    """
    info = torch.finfo(s_QP.dtype)
    best = s_QP.topk(min(k, s_QP.shape[1]), dim=1)
    rest_QP = s_QP.scatter(1, best.indices, float("-inf"))
    t_Q1 = ((-best.values).logsumexp(dim=1, keepdim=True) - rest_QP.logsumexp(dim=1, keepdim=True)) / 2
    t_Q1 = t_Q1.clamp(max=info.max / 4)  # at most k candidates: all are among the best
    for _ in range(NEWTON_STEPS):
        over_QP, under_QK = (rest_QP + t_Q1).sigmoid_(), (-best.values - t_Q1).sigmoid_()
        over_Q1, under_Q1 = over_QP.sum(dim=1, keepdim=True), under_QK.sum(dim=1, keepdim=True)
        slope_Q1 = 2 - over_QP.square_().sum(dim=1, keepdim=True) / over_Q1
        slope_Q1 -= under_QK.square_().sum(dim=1, keepdim=True) / under_Q1
        vanished_Q1 = torch.minimum(over_Q1, under_Q1) <= info.tiny  # the start is exact then
        t_Q1 = t_Q1 - ((over_Q1 / under_Q1).log() / slope_Q1).masked_fill(vanished_Q1, 0)
    return t_Q1
