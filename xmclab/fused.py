"""Passes over matrices of scores, compiled: what `closed_form` and binary losses otherwise do in several of torch's.

Equal to those within rounding. Import it through `accelerator.fused_for`, as this module loads numba. Matrices are
float32 on the CPU; rows are cut into slices that fit the cache, always at the same places, so that sums do not depend
on the number of threads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from xmclab.accelerator import in_threads, jit_with

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

CELLS_OF_SLICE = 1 << 17
WIDEST = np.float32(80)  # exponentials of numbers so far apart, and sums of 1e3 of them, are normal float32 numbers
LOWEST, HIGHEST = np.int32(-(2**31)), np.int32(2**31 - 1)
ABSENT = np.int32(-0x7F800001)  # what `_ordered` gives of the score of an absent candidate, -inf
ROUND = np.float32(1.5 * 2**23)  # added and taken away again, it rounds; between, the integer is in the lowest bits
ONE = np.int32(127 << 23)  # the bits of 1.0
SMALLEST = np.finfo(np.float32).min
f32 = np.float32
# Sums may be taken in any order, and nothing else is given up: infinities and NaN pass through.
loop_jit = jit_with(fastmath={"contract", "reassoc"}, error_model="numpy")
scalar_jit = jit_with(forceinline=True, fastmath={"contract"}, error_model="numpy")


def _slices(rows: int, columns: int) -> list[slice]:
    size = max(1, CELLS_OF_SLICE // max(columns, 1))
    return [slice(start, start + size) for start in range(0, rows, size)]


def log_sums(s_BP: Tensor) -> tuple[Tensor, Tensor]:
    """The log-sum-exp of every row and of every column."""
    rows, columns = s_BP.shape
    cuts = _slices(rows, columns)
    top_B, sum_B = np.empty((2, rows), np.float32)
    top_SP, sum_SP = np.empty((2, len(cuts), columns), np.float32)
    s = s_BP.numpy()
    in_threads(lambda n: _sums(s[cuts[n]], top_B[cuts[n]], sum_B[cuts[n]], top_SP[n], sum_SP[n]), range(len(cuts)))
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing but absent candidates; scores that are not finite
        top_P = top_SP.max(axis=0)
        top_SP -= top_P
        sum_SP *= np.exp(top_SP, out=top_SP)
        sum_P = sum_SP.sum(axis=0)
        return torch.from_numpy(top_B + np.log(sum_B)), torch.from_numpy(top_P + np.log(sum_P))


def weigh_(s_BP: Tensor, log_sum_B: Tensor, slope_B: Tensor, log_sum_P: Tensor, slope_P: Tensor) -> None:
    """Overwrite s_ij by slope_i exp(s_ij - log_sum_i) + slope_j exp(s_ij - log_sum_j)."""
    s, of_rows = s_BP.numpy(), (log_sum_B.numpy(), slope_B.numpy())
    of_columns = log_sum_P.numpy(), slope_P.numpy()
    cuts = _slices(*s.shape)
    in_threads(lambda cut: _weigh(s[cut], of_rows[0][cut], of_rows[1][cut], *of_columns), cuts)


def add_row_sums(s_QB: Tensor, scale: float, top_Q: Tensor, sum_Q: Tensor) -> None:
    """Take scaled scores into running sums: sum_i exp(top_i) is that of exp(scale s_ij) over all j so far."""
    s, top, total = s_QB.numpy(), top_Q.numpy(), sum_Q.numpy()
    in_threads(lambda cut: _add_row_sums(s[cut], f32(scale), top[cut], total[cut]), _slices(*s.shape))


def weigh_rows_(s_QB: Tensor, scale: float, log_sum_Q: Tensor, slope_Q: Tensor) -> None:
    """Overwrite s_ij by slope_i exp(scale s_ij - log_sum_i)."""
    s, log_sum, slope = s_QB.numpy(), log_sum_Q.numpy(), slope_Q.numpy()
    in_threads(lambda cut: _weigh_rows(s[cut], f32(scale), log_sum[cut], slope[cut]), _slices(*s.shape))


def softplus_to_grad_(s_QP: Tensor) -> Tensor:
    """The sum of log(1 + exp s); overwrites the scores by its gradient."""
    s = s_QP.numpy()
    values = in_threads(lambda cut: _softplus(s[cut]), _slices(*s.shape))
    return torch.tensor(math.fsum(values), dtype=s_QP.dtype)


@scalar_jit
def _exp(x: np.float32) -> np.float32:
    """Of x <= 88, to 1e-7: a power of two, times a polynomial of the rest (the constants of Cephes' expf)."""
    y = x if not x < f32(-87) else f32(-87)
    shifted = y * f32(1.44269504) + ROUND
    power = shifted - ROUND
    rest = y - power * f32(0.693359375) + power * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * rest + f32(1.3981999507e-3)
    p = p * rest + f32(8.3334519073e-3)
    p = p * rest + f32(4.1665795894e-2)
    p = p * rest + f32(1.6666665459e-1)
    p = p * rest + f32(5.0000001201e-1)
    bits = np.int32(f32(shifted).view(np.int32) << np.int32(23))
    e = (p * rest * rest + rest + f32(1)) * np.int32(bits + ONE).view(np.float32)
    return f32(0) if x < f32(-87) else e


@scalar_jit
def _softplus_of(s: np.float32) -> tuple[np.float32, np.float32]:
    """(log(1 + exp s), its slope), to 2e-7: from e = exp(-|s|) and log(1 + e) = 2 artanh(e / (2 + e))."""
    e = _exp(-abs(s))
    t = e / (f32(2) + e)
    z = t * t
    # The artanh's series in z <= 1/9, cut off after four terms that make up for the rest: within 2e-8.
    p = f32(0.13433775)
    p = p * z + f32(0.14116977)
    p = p * z + f32(0.20003836)
    p = p * z + f32(0.33333319)
    value = (s if s > f32(0) else f32(0)) + f32(2) * (t + t * z * p)
    return value, (e if s < f32(0) else f32(1)) / (f32(1) + e)


@scalar_jit
def _ordered(bits: np.int32) -> np.int32:
    """Of a float's bits: an integer in the same order, as vectors compare integers; its own inverse. NaN is extreme."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@loop_jit
def _top(bits_P: NDArray[np.int32]) -> np.float32:
    """The largest float of a row."""
    top = LOWEST
    for j in range(len(bits_P)):
        top = max(top, _ordered(bits_P[j]))
    return np.int32(_ordered(top)).view(np.float32)


@loop_jit
def _shift_of_all(s_RP: Floats) -> np.float32:
    """The largest score if one shift does for all: if the others, but for absent candidates, are not far below it."""
    bits_RP = s_RP.view(np.int32)
    low, high = HIGHEST, LOWEST
    for i in range(bits_RP.shape[0]):
        row_low, row_high = HIGHEST, LOWEST
        for j in range(bits_RP.shape[1]):
            order = _ordered(bits_RP[i, j])
            row_high = max(row_high, order)
            row_low = min(row_low, order if order > ABSENT else HIGHEST)
        low, high = min(low, row_low), max(high, row_high)
    if high == ABSENT:
        return f32(0)
    low_s, high_s = np.int32(_ordered(low)).view(np.float32), np.int32(_ordered(high)).view(np.float32)
    return high_s if high_s - low_s <= WIDEST else f32(np.nan)


@loop_jit
def _sums(s_RP: Floats, top_R: Floats, sum_R: Floats, top_P: Floats, sum_P: Floats) -> None:
    """Sums of exp(s - top) by rows and by columns: from one exponential if one shift does for all."""
    shift = _shift_of_all(s_RP)
    sum_P[:] = f32(0)
    if shift == shift:
        top_R[:] = shift
        top_P[:] = shift
        for i in range(s_RP.shape[0]):
            total = f32(0)
            for j in range(s_RP.shape[1]):
                e = _exp(s_RP[i, j] - shift)
                sum_P[j] += e
                total += e
            sum_R[i] = total
        return
    top_P[:] = SMALLEST
    for i in range(s_RP.shape[0]):
        for j in range(s_RP.shape[1]):
            s = s_RP[i, j]
            top_P[j] = s if s > top_P[j] else top_P[j]
    for i in range(s_RP.shape[0]):
        top, total = max(_top(s_RP[i].view(np.int32)), SMALLEST), f32(0)
        for j in range(s_RP.shape[1]):
            s = s_RP[i, j]
            total += _exp(s - top)
            sum_P[j] += _exp(s - top_P[j])
        top_R[i], sum_R[i] = top, total


@loop_jit
def _weigh(s_RP: Floats, log_sum_R: Floats, slope_R: Floats, log_sum_P: Floats, slope_P: Floats) -> None:
    shift = _shift_of_all(s_RP)
    if shift == shift:
        # A log-sum-exp that is lower still belongs to an anchor all of whose candidates here are absent.
        factor_P = np.empty_like(slope_P)
        for j in range(len(factor_P)):
            factor_P[j] = slope_P[j] * _exp(min(shift - log_sum_P[j], WIDEST))
        for i in range(s_RP.shape[0]):
            factor = slope_R[i] * _exp(min(shift - log_sum_R[i], WIDEST))
            for j in range(s_RP.shape[1]):
                s_RP[i, j] = _exp(s_RP[i, j] - shift) * (factor + factor_P[j])
        return
    for i in range(s_RP.shape[0]):
        log_sum, slope = max(log_sum_R[i], SMALLEST), slope_R[i]
        for j in range(s_RP.shape[1]):
            s = s_RP[i, j]
            log_sum_j = max(log_sum_P[j], SMALLEST)
            s_RP[i, j] = slope * _exp(s - log_sum) + slope_P[j] * _exp(s - log_sum_j)


@loop_jit
def _add_row_sums(s_RB: Floats, scale: np.float32, top_R: Floats, sum_R: Floats) -> None:
    for i in range(s_RB.shape[0]):
        top = max(_top(s_RB[i].view(np.int32)) * scale, top_R[i])
        total = sum_R[i] * f32(math.exp(top_R[i] - top))
        for j in range(s_RB.shape[1]):
            total += _exp(s_RB[i, j] * scale - top)
        top_R[i], sum_R[i] = top, total


@loop_jit
def _weigh_rows(s_RB: Floats, scale: np.float32, log_sum_R: Floats, slope_R: Floats) -> None:
    for i in range(s_RB.shape[0]):
        log_sum, slope = max(log_sum_R[i], SMALLEST), slope_R[i]
        for j in range(s_RB.shape[1]):
            s_RB[i, j] = slope * _exp(s_RB[i, j] * scale - log_sum)


@loop_jit
def _softplus(s_RP: Floats) -> float:
    value = 0.0
    for i in range(s_RP.shape[0]):
        total = f32(0)
        for j in range(s_RP.shape[1]):
            cell, s_RP[i, j] = _softplus_of(s_RP[i, j])
            total += cell
        value += float(total)
    return value
