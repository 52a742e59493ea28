"""The passes of `objectives/softmax.py` over matrices of scores, compiled; equal to those within rounding.

Matrices are float32 on the CPU; rows are cut into slices that fit the cache, always at the same places, so that sums
do not depend on the number of threads. A step of `recipe=unidec data=debian` with mined negatives (1,024 queries, pool
6,500, ds+bce) takes 1.22 times as long without, one of pal_n over 17,882 labels 1.25 times.
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
    Anchored = tuple[Tensor, Tensor]  # (log-sum-exp, slope) of each row, or of each column

CELLS_OF_SLICE = 1 << 17
NEAR = np.float32(60)  # exp(+-60) and sums of 1e10 of them are normal float32 numbers
WIDEST = np.float32(80)  # and so is this exponential
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


def log_sums(s_QB: Tensor, near: bool, by_column: bool) -> tuple[Tensor, Tensor | None]:
    """`softmax.log_sums`; whether a row is near 0 is found for each."""
    rows, columns = s_QB.shape
    cuts = _slices(rows, columns)
    log_sum_Q = np.empty(rows, np.float32)
    # Memory that no row needs is never touched: rows far from 0 are rare.
    near_SB, top_SB, far_SB = np.empty((3, len(cuts), columns), np.float32)
    s = s_QB.numpy()
    slices = [(s[cut], log_sum_Q[cut], near_SB[n], top_SB[n], far_SB[n]) for n, cut in enumerate(cuts)]
    far_S = np.array(in_threads(_sums, slices))
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing but absent candidates; scores that are not finite
        log_sum_B = np.log(near_SB.sum(axis=0))
        if far_S.any():
            top_FB = top_SB[far_S]
            top_B = np.maximum(top_FB.max(axis=0), log_sum_B)
            log_sum_B = top_B + np.log(np.exp(log_sum_B - top_B) + (far_SB[far_S] * np.exp(top_FB - top_B)).sum(axis=0))
    return torch.from_numpy(log_sum_Q), torch.from_numpy(log_sum_B) if by_column else None


def weigh_(
    s_QB: Tensor, rows: Anchored | None, columns: Anchored | None, softplus: Tensor | None, near: bool
) -> Tensor:
    """`softmax.weigh_`."""
    s = s_QB.numpy()
    log_sum_Q, slope_Q, factor_Q = _anchored(rows, s.shape[0])
    of_columns = _anchored(columns, s.shape[1])
    weight = None if softplus is None else f32(softplus.item())
    cuts = _slices(*s.shape)
    slices = [(s[cut], log_sum_Q[cut], slope_Q[cut], factor_Q[cut], *of_columns, weight) for cut in cuts]
    return torch.tensor(math.fsum(in_threads(_weigh, slices)), dtype=s_QB.dtype)


def _anchored(anchors: Anchored | None, num: int) -> tuple[Floats, Floats, Floats]:
    """(log-sum-exp, slope, factor of exp(s)) of anchors; a log-sum-exp of inf makes all their weights 0."""
    if anchors is None:
        return np.full(num, np.inf, np.float32), np.zeros(num, np.float32), np.zeros(num, np.float32)
    log_sum_A, slope_A = (x.numpy() for x in anchors)
    # A log-sum-exp below the least belongs to an anchor without candidates near 0.
    return log_sum_A, slope_A, slope_A * np.exp(np.minimum(-log_sum_A, WIDEST))


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
def _sums(s_RB: Floats, log_sum_R: Floats, near_B: Floats, top_B: Floats, far_B: Floats) -> bool:
    """Sums by column of exp(s) over rows near 0 and of exp(s - top) over the others, if there are any."""
    near_B[:] = f32(0)
    far = False
    for i in range(s_RB.shape[0]):
        total = f32(0)
        if _is_near(s_RB[i].view(np.int32)):
            for j in range(s_RB.shape[1]):
                e = exp(s_RB[i, j])
                near_B[j] += e
                total += e
            log_sum_R[i] = np.log(total)
            continue
        if not far:
            top_B[:] = SMALLEST
            far_B[:] = f32(0)
            far = True
        top = max(_top(s_RB[i].view(np.int32)), SMALLEST)
        for j in range(s_RB.shape[1]):
            s, top_j = s_RB[i, j], top_B[j]
            total += exp(s - top)
            e = exp(-abs(s - top_j))
            far_B[j] = far_B[j] * e + f32(1) if s > top_j else far_B[j] + e
            top_B[j] = s if s > top_j else top_j
        log_sum_R[i] = top + np.log(total)
    return far


@loop_jit
def _weigh(
    s_RB: Floats,
    log_sum_R: Floats,
    slope_R: Floats,
    factor_R: Floats,
    log_sum_B: Floats,
    slope_B: Floats,
    factor_B: Floats,
    softplus: np.float32 | None,
) -> float:
    value, sigmoid_B = 0.0, np.zeros_like(slope_B)
    for i in range(s_RB.shape[0]):
        factor, log_sum, slope = factor_R[i], max(log_sum_R[i], SMALLEST), slope_R[i]
        total = f32(0)
        if _is_near(s_RB[i].view(np.int32)):
            for j in range(s_RB.shape[1]):
                s = s_RB[i, j]
                e = exp(s)
                if softplus is None:
                    s_RB[i, j] = e * (factor + factor_B[j])
                else:
                    cell, sigmoid = _softplus_of_near(s, e)
                    total += cell
                    s_RB[i, j] = e * (factor + factor_B[j]) + softplus * sigmoid
        else:
            if softplus is not None:
                for j in range(s_RB.shape[1]):
                    cell, sigmoid = _softplus_of(s_RB[i, j])
                    total += cell
                    sigmoid_B[j] = softplus * sigmoid
            for j in range(s_RB.shape[1]):
                s = s_RB[i, j]
                weights = slope * exp(s - log_sum) + slope_B[j] * exp(s - max(log_sum_B[j], SMALLEST))
                s_RB[i, j] = weights + sigmoid_B[j]
        value += float(total)
    return value
