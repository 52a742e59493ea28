"""The passes over a matrix of negatives: sums of its exponentials, and its gradient in place.

Both take -inf for an absent candidate. `near`: all other scores are known to be within +-60, so that nothing overflows
and one exponential serves queries, labels and log(1 + exp s); else each anchor's is shifted by its log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import softplus as softplus_of

from xmclab.api import BinaryLoss
from xmclab.kernels.dispatch import accelerated_by, for_loops

NEAR = 60.0  # exp(+-60) and sums of 1e10 of them are normal float32 numbers
WIDEST = 80.0  # and so is this exponential
CELLS_OF_SLICE = 1 << 20  # to fit the cache of a CPU
CELLS_OF_LAUNCH = 1 << 22  # elsewhere, where every slice costs launches

Anchored = tuple[Tensor, Tensor]  # (log-sum-exp, slope) of each row, or of each column


@accelerated_by("scores", when=lambda s_QB, *_: for_loops(s_QB), by_torch=True)
def log_sums(s_QB: Tensor, near: bool, by_column: bool) -> tuple[Tensor, Tensor | None]:
    """The log-sum-exp of every row, and of every column if wanted; -inf if all candidates are absent."""
    rows, columns = [], []
    for _, s_RB in slices(s_QB):
        if near:
            e_RB = s_RB.exp()
            rows.append(e_RB @ e_RB.new_ones(e_RB.shape[1]))  # a product with ones is the fastest sum
            columns += [e_RB.new_ones(len(e_RB)) @ e_RB] if by_column else []
        else:
            rows.append(_log_sum_exp(s_RB, dim=1))
            columns += [_log_sum_exp(s_RB, dim=0)] if by_column else []
    row_Q, column_RB = torch.cat(rows), torch.stack(columns) if by_column else None
    if near:
        return row_Q.log(), None if column_RB is None else column_RB.sum(dim=0).log()
    return row_Q, None if column_RB is None else column_RB.logsumexp(dim=0)


@accelerated_by("scores", when=lambda s_QB, *_: for_loops(s_QB), by_torch=True)
def weigh_(
    s_QB: Tensor, rows: Anchored | None, columns: Anchored | None, softplus: Tensor | None, near: bool
) -> Tensor:
    """Overwrite s_ij by slope_i exp(s_ij - log_sum_i) + slope_j exp(s_ij - log_sum_j) + softplus / (1 + exp -s_ij).

    Args:
        softplus: a number, the factor of the slope of log(1 + exp s).

    Returns:
        The sum of log(1 + exp s); 0 without `softplus`.
    """
    values = []
    for cut, s_RB in slices(s_QB):
        slopes = []
        if softplus is not None:
            values.append(softplus_of(s_RB, threshold=50).sum())  # log(1 + exp(50)) is 50 in float64
            slopes.append(s_RB.sigmoid().mul_(softplus))
        parts = [(rows[0][cut, None], rows[1][cut, None])] if rows else []
        parts += [columns] if columns else []
        if near and parts:
            s_RB.exp_().mul_(sum(slope * (-log_sum).clamp(max=WIDEST).exp() for log_sum, slope in parts))
        else:
            slopes += [slope * (s_RB - _finite(log_sum)).exp_() for log_sum, slope in parts]
            s_RB.copy_(slopes.pop())
        for slope_RB in slopes:
            s_RB.add_(slope_RB)
    return torch.stack(values).sum() if values else s_QB.new_zeros(())


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


def slices(s_QB: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows in pieces, with the place of each; compiled code needs none."""
    cells = CELLS_OF_SLICE if s_QB.device.type == "cpu" else CELLS_OF_LAUNCH
    size = len(s_QB) if torch.compiler.is_compiling() else max(1, cells // max(s_QB.shape[1], 1))
    for start in range(0, len(s_QB), size):
        yield slice(start, start + size), s_QB[start : start + size]


def _log_sum_exp(s_RB: Tensor, dim: int) -> Tensor:
    """torch.logsumexp with the sum as a product with ones, which is faster in both directions."""
    top = _finite(s_RB.amax(dim=dim, keepdim=True))
    e_RB = (s_RB - top).exp_()
    ones = s_RB.new_ones(s_RB.shape[dim])
    return top.squeeze(dim) + (e_RB @ ones if dim == 1 else ones @ e_RB).log()


def _finite(log_sum_A: Tensor) -> Tensor:
    """Raises that of an anchor without candidates from -inf, as -inf - -inf would be NaN."""
    return log_sum_A.clamp(min=torch.finfo(log_sum_A.dtype).min)
