"""Sums of exponentials, shared by the closed forms of softmax losses."""

from __future__ import annotations

import torch
from torch import Tensor


def exponentials(s_QP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(e_QP proportional to the softmax of every row, its row sums, the log-sum-exp of every row).

    Overwrites `s_QP` with the first. A row of -inf alone has exponentials of 0, the smallest positive sum, and a
    log-sum-exp of -inf.
    """
    numbers = torch.finfo(s_QP.dtype)
    top_Q1 = s_QP.amax(dim=1, keepdim=True).clamp_(min=numbers.min)
    s_QP.sub_(top_Q1).exp_()
    sum_Q = s_QP.sum(dim=1)
    return s_QP, sum_Q.clamp(min=numbers.tiny), top_Q1.squeeze(1) + sum_Q.log()
