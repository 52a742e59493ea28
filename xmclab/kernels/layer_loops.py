"""The loops of `layers`: dropout by hash, GELU, attention and the residual norm at the end of a half. Imports numba."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from xmclab.kernels.scores import exp, loop_jit, scalar_jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Places = NDArray[np.int64]

f32, u32 = np.float32, np.uint32


class Drop(NamedTuple):
    """Dropout at one place of the network, for one pass."""

    low: np.uint32  # both halves of the seed of its draws
    high: np.uint32
    below: np.uint32  # draws below it drop the value
    scale: np.float32  # of what stays

    @classmethod
    def draw(cls, rate: float) -> Drop:
        """The seed is taken from torch's generator, so that seeding or replaying it gives the same draws."""
        seed = int(torch.empty((), dtype=torch.int64).random_()) if rate else 0
        return cls(u32(seed & 0xFFFFFFFF), u32(seed >> 32), u32(round(rate * 2**32)), f32(1 / (1 - rate)))


@scalar_jit
def _keeps(place: np.uint32, drop: Drop) -> np.bool:
    """Whether a place is kept: a hash of it and of both halves of the seed, by three rounds of shift and multiply."""
    h = u32(place * u32(0x9E3779B9) + drop.low)
    h = u32((h ^ (h >> u32(17))) * u32(0xED5AD4BB) + drop.high)
    h = u32((h ^ (h >> u32(11))) * u32(0xAC4C1B51))
    h = u32((h ^ (h >> u32(15))) * u32(0x31848BAB))
    return u32(h ^ (h >> u32(14))) >= drop.below


@scalar_jit
def _gelu_of(u: np.float32) -> tuple[np.float32, np.float32]:
    """(u Φ(u), its slope Φ(u) + u φ(u)), to 2e-7: both from one exponential."""
    size = abs(u)
    e = exp(f32(-0.5) * u * u)
    t = f32(1) / (f32(1) + f32(0.39) * size)
    # The tail Φ(-|u|) / exp(-u²/2) as a polynomial in t, fitted to 2e-8 of u Φ(u).
    p = f32(0.053615959)
    p = p * t + f32(-0.257374249)
    p = p * t + f32(0.373878856)
    p = p * t + f32(-0.0156946936)
    p = p * t + f32(0.194099725)
    p = p * t + f32(0.15147439)
    tail = p * t * e
    share = tail if u < f32(0) else f32(1) - tail
    return u * share, share + u * e * f32(0.39894228)


@loop_jit
def gelu(start: int, stop: int, u_TU: Floats, bias_U: Floats, a_TU: Floats) -> None:
    for i in range(start, stop):
        for j in range(u_TU.shape[1]):
            a_TU[i, j], u_TU[i, j] = _gelu_of(u_TU[i, j] + bias_U[j])


@loop_jit
def gelu_back(start: int, stop: int, grad_TU: Floats, slope_TU: Floats, du_TU: Floats, sum_U: Floats) -> None:
    for i in range(start, stop):
        for j in range(grad_TU.shape[1]):
            du = grad_TU[i, j] * slope_TU[i, j]
            du_TU[i, j] = du
            sum_U[j] += du


@loop_jit
def drop(start: int, stop: int, drop: Drop, x: Floats, y: Floats) -> None:
    for i in range(start, stop):
        place = i * x.shape[1]
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * drop.scale if _keeps(u32(place + j), drop) else f32(0)


@loop_jit
def join(
    start: int,
    stop: int,
    h_TD: Floats,
    eps: np.float32,
    drop: Drop,
    x_TD: Floats,
    bias_D: Floats,
    gain_D: Floats,
    shift_D: Floats,
    spread_T: Floats,
    y_TD: Floats,
) -> None:
    """y = norm(x + drop(h + bias)); overwrites h by the numbers before gain and shift."""
    width = h_TD.shape[1]
    for i in range(start, stop):
        place = i * width
        total = f32(0)
        for j in range(width):
            h = (h_TD[i, j] + bias_D[j]) * drop.scale
            z = x_TD[i, j] + (h if _keeps(u32(place + j), drop) else f32(0))
            h_TD[i, j] = z
            total += z
        mean = total / f32(width)
        square = f32(0)
        for j in range(width):
            z = h_TD[i, j] - mean
            square += z * z
        spread = f32(1) / f32(math.sqrt(square / f32(width) + eps))
        spread_T[i] = spread
        for j in range(width):
            normal = (h_TD[i, j] - mean) * spread
            h_TD[i, j] = normal
            y_TD[i, j] = normal * gain_D[j] + shift_D[j]


@loop_jit
def join_back(
    start: int,
    stop: int,
    drop: Drop,
    grad_TD: Floats,
    normal_TD: Floats,
    spread_T: Floats,
    gain_D: Floats,
    dx_TD: Floats,
    dh_TD: Floats,
    sums_3D: Floats,
) -> None:
    """The gradients of x and h, and sums of those of bias, gain and shift."""
    width = grad_TD.shape[1]
    for i in range(start, stop):
        place = i * width
        spread = spread_T[i]
        total, along = f32(0), f32(0)
        for j in range(width):
            g = grad_TD[i, j] * gain_D[j]
            total += g
            along += g * normal_TD[i, j]
        total, along = total / f32(width), along / f32(width)
        for j in range(width):
            grad, normal = grad_TD[i, j], normal_TD[i, j]
            dx = spread * (grad * gain_D[j] - total - normal * along)
            dh = dx * drop.scale if _keeps(u32(place + j), drop) else f32(0)
            dx_TD[i, j] = dx
            dh_TD[i, j] = dh
            sums_3D[0, j] += dh
            sums_3D[1, j] += grad * normal
            sums_3D[2, j] += grad


@loop_jit
def _softmax(begin: int, end: int, u_T3HD: Floats, w: Floats) -> None:
    """Softmax over j of <q_i, k_j> / sqrt(d) in one text, by head, i and j, flat."""
    heads, depth = u_T3HD.shape[2], u_T3HD.shape[3]
    root = f32(1 / math.sqrt(depth))
    cell = 0
    for h in range(heads):
        for i in range(begin, end):
            first, top = cell, f32(-np.inf)
            for j in range(begin, end):
                s = f32(0)
                for e in range(depth):
                    s += u_T3HD[i, 0, h, e] * u_T3HD[j, 1, h, e]
                s *= root
                w[cell] = s
                top = max(top, s)
                cell += 1
            for j in range(first, cell):
                w[j] -= top
    for j in range(cell):
        w[j] = exp(w[j])
    length = end - begin
    for row in range(heads * length):
        total = f32(0)
        for j in range(row * length, row * length + length):
            total += w[j]
        share = f32(1) / total
        for j in range(row * length, row * length + length):
            w[j] *= share


@loop_jit
def attend(
    start: int,
    stop: int,
    offset_B: Places,
    longest: int,
    drop: Drop,
    u_T3HD: Floats,
    bias_3HD: Floats,
    mixed_THD: Floats,
) -> None:
    """Attention in the texts from start to stop; adds the bias to u."""
    heads, depth = u_T3HD.shape[2], u_T3HD.shape[3]
    w = np.empty(heads * longest * longest, np.float32)
    for text in range(start, stop):
        begin, end = offset_B[text], offset_B[text + 1]
        for t in range(begin, end):
            for part in range(3):
                for h in range(heads):
                    for e in range(depth):
                        u_T3HD[t, part, h, e] += bias_3HD[part, h, e]
        _softmax(begin, end, u_T3HD, w)
        place = begin * heads * longest
        for cell in range(heads * (end - begin) * (end - begin)):
            w[cell] = w[cell] * drop.scale if _keeps(u32(place + cell), drop) else f32(0)
        cell = 0
        for h in range(heads):
            for i in range(begin, end):
                for e in range(depth):
                    mixed_THD[i, h, e] = f32(0)
                for j in range(begin, end):
                    weight = w[cell]
                    for e in range(depth):
                        mixed_THD[i, h, e] += weight * u_T3HD[j, 2, h, e]
                    cell += 1


@loop_jit
def attend_back(
    start: int,
    stop: int,
    offset_B: Places,
    longest: int,
    drop: Drop,
    u_T3HD: Floats,
    grad_THD: Floats,
    du_T3HD: Floats,
    sum_3HD: Floats,
) -> None:
    heads, depth = u_T3HD.shape[2], u_T3HD.shape[3]
    root = f32(1 / math.sqrt(depth))
    w, dropped, dw = np.empty((3, heads * longest * longest), np.float32)
    for text in range(start, stop):
        begin, end = offset_B[text], offset_B[text + 1]
        length = end - begin
        _softmax(begin, end, u_T3HD, w)
        cell = 0
        for h in range(heads):
            for i in range(begin, end):
                for j in range(begin, end):
                    s = f32(0)
                    for e in range(depth):
                        s += grad_THD[i, h, e] * u_T3HD[j, 2, h, e]
                    dw[cell] = s
                    cell += 1
        place = begin * heads * longest
        for cell in range(heads * length * length):
            kept = drop.scale if _keeps(u32(place + cell), drop) else f32(0)
            dropped[cell] = w[cell] * kept
            dw[cell] *= kept
        for row in range(heads * length):
            along = f32(0)
            for cell in range(row * length, row * length + length):
                along += w[cell] * dw[cell]
            for cell in range(row * length, row * length + length):
                dw[cell] = w[cell] * (dw[cell] - along) * root
        du_T3HD[begin:end] = f32(0)
        cell = 0
        for h in range(heads):
            for i in range(begin, end):
                for j in range(begin, end):
                    ds, weight = dw[cell], dropped[cell]
                    for e in range(depth):
                        du_T3HD[i, 0, h, e] += ds * u_T3HD[j, 1, h, e]
                    for e in range(depth):
                        du_T3HD[j, 1, h, e] += ds * u_T3HD[i, 0, h, e]
                    for e in range(depth):
                        du_T3HD[j, 2, h, e] += weight * grad_THD[i, h, e]
                    cell += 1
        for t in range(begin, end):
            for part in range(3):
                for h in range(heads):
                    for e in range(depth):
                        sum_3HD[part, h, e] += du_T3HD[t, part, h, e]
