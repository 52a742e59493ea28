"""Sums of exponentials over lists of pairs, for the closed forms of softmax losses."""

from __future__ import annotations

import torch
from torch import Tensor


def log_sum_exp_by_row(s_E: Tensor, row_E: Tensor, rows: int) -> Tensor:
    """The log-sum-exp of the scores of every row; -inf for a row without any."""
    top_Q = s_E.new_full((rows,), torch.finfo(s_E.dtype).min).scatter_reduce_(0, row_E, s_E, "amax")
    sum_Q = torch.zeros_like(top_Q).index_add_(0, row_E, (s_E - top_Q[row_E]).exp_())
    return top_Q + sum_Q.log()
