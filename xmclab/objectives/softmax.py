"""Sums of exponentials and their logarithms, for the closed forms of losses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xmclab.api import BinaryLoss
from xmclab.kernels.dispatch import fused_for


def log_sum_exp_by_row(s_E: Tensor, row_E: Tensor, rows: int) -> Tensor:
    """The log-sum-exp of the scores of each row; -inf for an empty row."""
    top_Q = s_E.new_full((rows,), torch.finfo(s_E.dtype).min).scatter_reduce_(0, row_E, s_E, "amax")
    sum_Q = torch.zeros_like(top_Q).index_add_(0, row_E, (s_E - top_Q.index_select(0, row_E)).exp_())
    return top_Q + sum_Q.log()


def sum_of_negatives(loss: BinaryLoss, s_QP: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a binary loss over cells whose target is 0, and its gradient, which may be written over the scores."""
    if not loss.has_softplus_negatives:
        return loss.of_negatives(s_QP)
    if fused := fused_for(s_QP):
        return fused.softplus_to_grad_(s_QP), s_QP
    return softplus(s_QP, threshold=50).sum(), s_QP.sigmoid_()  # log(1 + exp(50)) is 50 in float64


def sum_of_negative_odds(loss: BinaryLoss, e_QP: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the exponentials of the scores, which are kept."""
    if loss.defines("of_negative_odds"):
        return loss.of_negative_odds(e_QP)
    if not loss.has_softplus_negatives:
        return loss.of_negatives(e_QP.log())
    value = e_QP.log1p().sum()
    other_QP = 1 + e_QP
    return value, torch.div(e_QP, other_QP, out=other_QP)
