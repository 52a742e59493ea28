"""Passes over matrices of scores, compiled: what `objectives` and binary losses otherwise do in several of torch's.

Equal to those within rounding. Import it through `dispatch.fused_for`, as this module loads numba. Matrices are
float32 on the CPU; rows are cut into slices that fit the cache, always at the same places, so that sums do not depend
on the number of threads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from xmclab.kernels.dispatch import in_threads, jit_with

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

CELLS_OF_SLICE = 1 << 17
NEAR = np.float32(60)  # exp(+-60) and sums of 1e10 of them are normal float32 numbers
WIDEST = np.float32(80)  # and so is this exponential
MUCH = np.float32(1e26)  # about exp(60)
ROUND = np.float32(1.5 * 2**23)  # adding and subtracting it rounds; in between, the integer is in the lowest bits
ONE = np.int32(127 << 23)  # the bits of 1.0
ABSENT = np.int32(-0x800000)  # the bits of -inf, the score of an absent candidate
LOWEST = np.int32(-(2**31))
SMALLEST = np.finfo(np.float32).min
f32 = np.float32
# Sums may be reordered, but nothing else is relaxed: infinities and NaN pass through.
loop_jit = jit_with(fastmath={"contract", "reassoc"}, error_model="numpy")
scalar_jit = jit_with(forceinline=True, fastmath={"contract"}, error_model="numpy")


def _slices(rows: int, columns: int) -> list[slice]:
    size = max(1, CELLS_OF_SLICE // max(columns, 1))
    return [slice(start, start + size) for start in range(0, rows, size)]


def log_sums(s_BP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-sum-exp of every row and of every column; which rows are near 0, for `weigh_`."""
    rows, columns = s_BP.shape
    cuts = _slices(rows, columns)
    log_sum_B, near_B = np.empty(rows, np.float32), np.empty(rows, np.bool_)
    # Memory that no row needs is never touched: rows far from 0 are rare.
    near_SP, top_SP, far_SP = np.empty((3, len(cuts), columns), np.float32)
    s = s_BP.numpy()

    def sums(n: int) -> bool:
        return _sums(s[cuts[n]], near_B[cuts[n]], log_sum_B[cuts[n]], near_SP[n], top_SP[n], far_SP[n])

    far_S = np.array(in_threads(sums, range(len(cuts))))
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing but absent candidates; scores that are not finite
        log_sum_P = np.log(near_SP.sum(axis=0))
        if far_S.any():
            top_FP = top_SP[far_S]
            top_P = np.maximum(top_FP.max(axis=0), log_sum_P)
            log_sum_P = top_P + np.log(np.exp(log_sum_P - top_P) + (far_SP[far_S] * np.exp(top_FP - top_P)).sum(axis=0))
    return torch.from_numpy(log_sum_B), torch.from_numpy(log_sum_P), torch.from_numpy(near_B)


def weigh_(
    s_BP: Tensor,
    log_sum_B: Tensor,
    slope_B: Tensor,
    log_sum_P: Tensor,
    slope_P: Tensor,
    near_B: Tensor,
    softplus: float | None = None,
) -> Tensor:
    """Overwrite s_ij by slope_i exp(s_ij - log_sum_i) + slope_j exp(s_ij - log_sum_j).

    Args:
        near_B: rows that are near 0, as `log_sums` found.
        softplus: add this multiple of the gradient of log(1 + exp s).

    Returns:
        The sum of log(1 + exp s); 0 if `softplus` is 0.
    """
    s, near, log_sum, slope = s_BP.numpy(), near_B.numpy(), log_sum_B.numpy(), slope_B.numpy()
    factor = _factor(log_sum, slope)
    of_columns = _factor(log_sum_P.numpy(), slope_P.numpy()), log_sum_P.numpy(), slope_P.numpy()

    def weigh(cut: slice) -> float:
        of_rows = near[cut], factor[cut], log_sum[cut], slope[cut]
        if softplus is None:
            return _weigh(s[cut], *of_rows, *of_columns)
        return _weigh_with_softplus(s[cut], *of_rows, *of_columns, f32(softplus))

    return torch.tensor(math.fsum(in_threads(weigh, _slices(*s.shape))), dtype=s_BP.dtype)


def _factor(log_sum_A: Floats, slope_A: Floats) -> Floats:
    """The factor of exp(s). A log-sum-exp below the least belongs to an anchor without candidates near 0."""
    return slope_A * np.exp(np.minimum(-log_sum_A, WIDEST))


def add_row_sums(s_QB: Tensor, scale: float, top_Q: Tensor, sum_Q: Tensor) -> None:
    """Add scaled scores to running sums: sum_i exp(top_i) is that of exp(scale s_ij) over all j so far."""
    s, top, total = s_QB.numpy(), top_Q.numpy(), sum_Q.numpy()
    in_threads(lambda cut: _add_row_sums(s[cut], f32(scale), top[cut], total[cut]), _slices(*s.shape))


def weigh_rows_(s_QB: Tensor, scale: float, log_sum_Q: Tensor, slope_Q: Tensor) -> None:
    """Overwrite s_ij by slope_i exp(scale s_ij - log_sum_i)."""
    s, log_sum, slope = s_QB.numpy(), log_sum_Q.numpy(), slope_Q.numpy()
    in_threads(lambda cut: _weigh_rows(s[cut], f32(scale), log_sum[cut], slope[cut]), _slices(*s.shape))


def softplus_to_grad_(s_QP: Tensor, scale: float = 1.0) -> Tensor:
    """The sum of log(1 + exp s); overwrites the scores by `scale` times its gradient."""
    s = s_QP.numpy()
    values = in_threads(lambda cut: _softplus(s[cut], f32(scale)), _slices(*s.shape))
    return torch.tensor(math.fsum(values), dtype=s_QP.dtype)


@scalar_jit
def exp(x: np.float32) -> np.float32:
    """exp(x) for x <= 88, to 1e-7: a power of two (ln 2 in two parts, as in Cephes) times a polynomial of the rest."""
    y = x if not x < f32(-87) else f32(-87)
    shifted = y * f32(1.44269504) + ROUND
    power = shifted - ROUND
    rest = y - power * f32(0.693359375) + power * f32(2.12194440e-4)
    square = rest * rest
    p = f32(1.390130983e-3) * square + (f32(8.363200058e-3) * rest + f32(4.166685409e-2))
    p = p * square + (f32(1.666657696e-1) * rest + f32(4.999999955e-1))
    bits = np.int32(f32(shifted).view(np.int32) << np.int32(23))
    e = (p * square + (rest + f32(1))) * np.int32(bits + ONE).view(np.float32)
    return f32(0) if x < f32(-87) else e


@scalar_jit
def _twice_artanh(t: np.float32) -> np.float32:
    """2 artanh(t) for 0 <= t <= 1/3, to 1e-7: the series, with four terms fitted to make up for the rest."""
    z = t * t
    p = f32(0.13433775)
    p = p * z + f32(0.14116977)
    p = p * z + f32(0.20003836)
    p = p * z + f32(0.33333319)
    return f32(2) * (t + t * z * p)


@scalar_jit
def _softplus_of(s: np.float32) -> tuple[np.float32, np.float32]:
    """(log(1 + exp s), its slope), to 2e-7: from e = exp(-|s|) and log(1 + e) = 2 artanh(e / (2 + e))."""
    e = exp(-abs(s))
    value = (s if s > f32(0) else f32(0)) + _twice_artanh(e / (f32(2) + e))
    return value, (e if s < f32(0) else f32(1)) / (f32(1) + e)


@scalar_jit
def _softplus_of_near(s: np.float32, e: np.float32) -> tuple[np.float32, np.float32]:
    """The same from e = exp s."""
    one = f32(1) + e
    t = e / (one + f32(1)) if s < f32(0) else f32(1) / (one + e)
    return (s if s > f32(0) else f32(0)) + _twice_artanh(t), e / one


@scalar_jit
def _ordered(bits: np.int32) -> np.int32:
    """A float's bits as an integer of the same order, as vectors compare integers; its own inverse. NaN is extreme."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@loop_jit
def _top(bits_P: NDArray[np.int32]) -> np.float32:
    """The largest float of a row."""
    top = LOWEST
    for j in range(len(bits_P)):
        top = max(top, _ordered(bits_P[j]))
    return np.int32(_ordered(top)).view(np.float32)


@loop_jit
def _is_near(bits_P: NDArray[np.int32]) -> bool:
    """Whether the scores of a row, except absent candidates, are small enough to need no shift."""
    largest = np.int32(0)
    for j in range(len(bits_P)):
        largest = max(largest, np.int32(0) if bits_P[j] == ABSENT else np.int32(bits_P[j] & np.int32(0x7FFFFFFF)))
    return bool(np.int32(largest).view(np.float32) <= NEAR)


@loop_jit
def _sums(
    s_RP: Floats, near_R: NDArray[np.bool_], log_sum_R: Floats, near_P: Floats, top_P: Floats, far_P: Floats
) -> bool:
    """Sums by column of exp(s) over rows near 0 and of exp(s - top) over the others, if there are any."""
    near_P[:] = f32(0)
    far = False
    for i in range(s_RP.shape[0]):
        total = f32(0)
        near_R[i] = _is_near(s_RP[i].view(np.int32))
        if near_R[i]:
            for j in range(s_RP.shape[1]):
                e = exp(s_RP[i, j])
                near_P[j] += e
                total += e
            log_sum_R[i] = np.log(total)
            continue
        if not far:
            top_P[:] = SMALLEST
            far_P[:] = f32(0)
            far = True
        top = max(_top(s_RP[i].view(np.int32)), SMALLEST)
        for j in range(s_RP.shape[1]):
            s, top_j = s_RP[i, j], top_P[j]
            total += exp(s - top)
            e = exp(-abs(s - top_j))
            far_P[j] = far_P[j] * e + f32(1) if s > top_j else far_P[j] + e
            top_P[j] = s if s > top_j else top_j
        log_sum_R[i] = top + np.log(total)
    return far


@loop_jit
def _weigh(
    s_RP: Floats,
    near_R: NDArray[np.bool_],
    factor_R: Floats,
    log_sum_R: Floats,
    slope_R: Floats,
    factor_P: Floats,
    log_sum_P: Floats,
    slope_P: Floats,
) -> float:
    for i in range(s_RP.shape[0]):
        factor, log_sum, slope = factor_R[i], max(log_sum_R[i], SMALLEST), slope_R[i]
        if near_R[i]:
            for j in range(s_RP.shape[1]):
                s_RP[i, j] = exp(s_RP[i, j]) * (factor + factor_P[j])
        else:
            for j in range(s_RP.shape[1]):
                s = s_RP[i, j]
                s_RP[i, j] = slope * exp(s - log_sum) + slope_P[j] * exp(s - max(log_sum_P[j], SMALLEST))
    return 0.0


@loop_jit
def _weigh_with_softplus(
    s_RP: Floats,
    near_R: NDArray[np.bool_],
    factor_R: Floats,
    log_sum_R: Floats,
    slope_R: Floats,
    factor_P: Floats,
    log_sum_P: Floats,
    slope_P: Floats,
    softplus: np.float32,
) -> float:
    value, sigmoid_P = 0.0, np.empty_like(slope_P)
    for i in range(s_RP.shape[0]):
        factor, log_sum, slope = factor_R[i], max(log_sum_R[i], SMALLEST), slope_R[i]
        total = f32(0)
        if near_R[i]:
            for j in range(s_RP.shape[1]):
                s = s_RP[i, j]
                e = exp(s)
                cell, sigmoid = _softplus_of_near(s, e)
                total += cell
                s_RP[i, j] = e * (factor + factor_P[j]) + softplus * sigmoid
        else:
            for j in range(s_RP.shape[1]):
                cell, sigmoid_P[j] = _softplus_of(s_RP[i, j])
                total += cell
            for j in range(s_RP.shape[1]):
                s = s_RP[i, j]
                weights = slope * exp(s - log_sum) + slope_P[j] * exp(s - max(log_sum_P[j], SMALLEST))
                s_RP[i, j] = weights + softplus * sigmoid_P[j]
        value += float(total)
    return value


@loop_jit
def _add_row_sums(s_RB: Floats, scale: np.float32, top_R: Floats, sum_R: Floats) -> None:
    for i in range(s_RB.shape[0]):
        top, added = top_R[i], f32(0)
        for j in range(s_RB.shape[1]):
            x = s_RB[i, j] * scale - top
            added += exp(x if not x > WIDEST else WIDEST)
        if added < MUCH:  # nothing is far enough above what came before to need another top
            sum_R[i] += added
            continue
        top = max(_top(s_RB[i].view(np.int32)) * scale, top)
        total = sum_R[i] * f32(math.exp(top_R[i] - top))
        for j in range(s_RB.shape[1]):
            total += exp(s_RB[i, j] * scale - top)
        top_R[i], sum_R[i] = top, total


@loop_jit
def _weigh_rows(s_RB: Floats, scale: np.float32, log_sum_R: Floats, slope_R: Floats) -> None:
    for i in range(s_RB.shape[0]):
        log_sum, slope = max(log_sum_R[i], SMALLEST), slope_R[i]
        for j in range(s_RB.shape[1]):
            s_RB[i, j] = slope * exp(s_RB[i, j] * scale - log_sum)


@loop_jit
def _softplus(s_RP: Floats, scale: np.float32) -> float:
    value = 0.0
    for i in range(s_RP.shape[0]):
        total = f32(0)
        for j in range(s_RP.shape[1]):
            cell, slope = _softplus_of(s_RP[i, j])
            s_RP[i, j] = scale * slope
            total += cell
        value += float(total)
    return value
