"""The passes of `scores`, compiled by torch where a run asks for it: on a GPU, and on a CPU without numba.

The same functions with the same meaning, for floats of any size on any device. Numbers that change from call to call
go in as tensors, as torch would recompile for each of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus as softplus_of

compiled = torch.compile(dynamic=True, fullgraph=True)


def log_sums(s_BP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`scores.log_sums`; no row is marked as near 0."""
    return *_log_sums(s_BP), s_BP.new_zeros(len(s_BP), dtype=torch.bool)


def weigh_(
    s_BP: Tensor,
    log_sum_B: Tensor,
    slope_B: Tensor,
    log_sum_P: Tensor,
    slope_P: Tensor,
    near_B: Tensor,
    softplus: float | None = None,
) -> Tensor:
    """`scores.weigh_`."""
    of_both = log_sum_B, slope_B, log_sum_P, slope_P
    if softplus is None:
        _weigh_(s_BP, *of_both)
        return s_BP.new_zeros(())
    return _weigh_with_softplus_(s_BP, *of_both, s_BP.new_full((), softplus))


def add_row_sums(s_QB: Tensor, scale: float, top_Q: Tensor, sum_Q: Tensor) -> None:
    """`scores.add_row_sums`."""
    _add_row_sums(s_QB, s_QB.new_full((), scale), top_Q, sum_Q)


def weigh_rows_(s_QB: Tensor, scale: float, log_sum_Q: Tensor, slope_Q: Tensor) -> None:
    """`scores.weigh_rows_`."""
    _weigh_rows_(s_QB, s_QB.new_full((), scale), log_sum_Q, slope_Q)


def softplus_to_grad_(s_QP: Tensor, scale: float = 1.0) -> Tensor:
    """`scores.softplus_to_grad_`."""
    return _softplus_to_grad_(s_QP, s_QP.new_full((), scale))


@compiled
def _log_sums(s_BP: Tensor) -> tuple[Tensor, Tensor]:
    return s_BP.logsumexp(dim=1), s_BP.logsumexp(dim=0)


@compiled
def _weigh_(s_BP: Tensor, log_sum_B: Tensor, slope_B: Tensor, log_sum_P: Tensor, slope_P: Tensor) -> None:
    s_BP.copy_(_weights(s_BP, log_sum_B, slope_B, log_sum_P, slope_P))


@compiled
def _weigh_with_softplus_(
    s_BP: Tensor, log_sum_B: Tensor, slope_B: Tensor, log_sum_P: Tensor, slope_P: Tensor, softplus: Tensor
) -> Tensor:
    value = _softplus(s_BP).sum()
    s_BP.copy_(_weights(s_BP, log_sum_B, slope_B, log_sum_P, slope_P) + softplus * s_BP.sigmoid())
    return value


@compiled
def _add_row_sums(s_QB: Tensor, scale: Tensor, top_Q: Tensor, sum_Q: Tensor) -> None:
    x_QB = s_QB * scale
    higher_Q = torch.maximum(top_Q, x_QB.amax(dim=1))
    sum_Q.copy_(sum_Q * (top_Q - higher_Q).exp() + (x_QB - higher_Q.unsqueeze(1)).exp().sum(dim=1))
    top_Q.copy_(higher_Q)


@compiled
def _weigh_rows_(s_QB: Tensor, scale: Tensor, log_sum_Q: Tensor, slope_Q: Tensor) -> None:
    s_QB.copy_(slope_Q.unsqueeze(1) * (s_QB * scale - _finite(log_sum_Q).unsqueeze(1)).exp())


@compiled
def _softplus_to_grad_(s_QP: Tensor, scale: Tensor) -> Tensor:
    value = _softplus(s_QP).sum()
    s_QP.copy_(scale * s_QP.sigmoid())
    return value


def _weights(s_BP: Tensor, log_sum_B: Tensor, slope_B: Tensor, log_sum_P: Tensor, slope_P: Tensor) -> Tensor:
    by_row_BP = slope_B.unsqueeze(1) * (s_BP - _finite(log_sum_B).unsqueeze(1)).exp()
    return by_row_BP + slope_P * (s_BP - _finite(log_sum_P)).exp()


def _softplus(s_BP: Tensor) -> Tensor:
    return softplus_of(s_BP, threshold=50)


def _finite(log_sum_A: Tensor) -> Tensor:
    """Raises that of an anchor without candidates from -inf, as -inf - -inf would be NaN."""
    return log_sum_A.clamp(min=torch.finfo(log_sum_A.dtype).min)
