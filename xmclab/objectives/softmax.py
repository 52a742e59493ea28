"""Pieces of closed forms."""

from __future__ import annotations

import torch
from torch import Tensor

from xmclab.api import BinaryLoss
from xmclab.objectives.engine import weigh_


def sum_of_negatives(loss: BinaryLoss, s_QP: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a binary loss over cells whose target is 0, and its gradient, which may be written over the scores."""
    if not loss.has_softplus_negatives:
        return loss.of_negatives(s_QP)
    return weigh_(s_QP, None, None, s_QP.new_ones(()), False), s_QP


def log_sum_exp_by_row(s_E: Tensor, row_E: Tensor, rows: int) -> Tensor:
    """The log-sum-exp of the scores of each row; -inf for an empty row."""
    top_Q = s_E.new_full((rows,), torch.finfo(s_E.dtype).min).scatter_reduce_(0, row_E, s_E, "amax")
    sum_Q = torch.zeros_like(top_Q).index_add_(0, row_E, (s_E - top_Q.index_select(0, row_E)).exp_())
    return top_Q + sum_Q.log()
