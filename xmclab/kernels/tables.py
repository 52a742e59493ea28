"""Updates of the rows of a table in one pass over them, compiled; `model/tables.py` defines the numbers.

A step of `recipe=unidec data=debian` takes 1.9 times as long without.

Rows lie anywhere in memory: each is prefetched some rows ahead of its turn, and threads share large updates.
Sums and products are rounded as there; only a square root may differ in its last bit, where torch rounds it wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from xmclab.kernels.dispatch import in_threads, jit
from xmclab.kernels.intrinsics import ask_for, fma, widened
from xmclab.kernels.pages import random_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]  # float32 or float64, all of a call alike
    Number = np.floating[Any]  # of the same kind
    Stored = NDArray[Any]  # a table: floats, or the bits of bfloat16 as int16
    Noise = NDArray[np.int16] | None  # for the rounding to bfloat16
    Rows = Tensor | slice  # distinct ids, or a block of neighbours

AHEAD = 8  # rows between the prefetch of one and its turn
WORTH_A_THREAD = 1 << 18  # numbers: with fewer, another thread starts too late to help


def add_mean_squares(total_L: Tensor, rows: Rows, g_PD: Tensor) -> Tensor:
    """`tables.add_mean_squares`."""
    total_L, ids_P = _listed(rows, total_L)
    total_P = total_L.new_empty(ids_P.shape[0])
    _in_parts(_add_mean_squares, g_PD, total_L.numpy(), ids_P.numpy(), g_PD.contiguous().numpy(), total_P.numpy())
    return total_P


def add_by_moments(
    weight_LD: Tensor,
    moments_L2D: Tensor,
    rows: Rows,
    g_PD: Tensor,
    rates: tuple[float, float, float, float],
    decay: float,
    factor: float,
) -> None:
    """`tables.add_by_moments`."""
    weight_LD, moments_L2D, ids_P = _listed(rows, weight_LD, moments_L2D)
    tables = _bits(weight_LD), moments_L2D.numpy(), ids_P.numpy()
    _in_parts(_add_by_moments, g_PD, *tables, g_PD.contiguous().numpy(), *rates, decay, factor, _noise(weight_LD, g_PD))


def add(weight_LD: Tensor, rows: Rows, direction_PD: Tensor, decay: float, factor_P: Tensor) -> None:
    """`tables.add`."""
    weight_LD, ids_P = _listed(rows, weight_LD)
    direction, noise = direction_PD.contiguous().numpy(), _noise(weight_LD, direction_PD)
    _in_parts(_add, direction_PD, _bits(weight_LD), ids_P.numpy(), direction, decay, factor_P.numpy(), noise)


def _listed(rows: Rows, *tables: Tensor) -> tuple[Tensor, ...]:
    """The tables and the ids of the rows in them; a block becomes a table of its own."""
    if isinstance(rows, Tensor):
        return *tables, rows
    blocks = [table[rows] for table in tables]
    return *blocks, torch.arange(len(blocks[0]))


def _noise(weight_LD: Tensor, x_PD: Tensor) -> Noise:
    """The random bits for rounding to the type of the weight."""
    return random_bits(x_PD).numpy() if weight_LD.dtype == torch.bfloat16 else None


def _bits(weight_LD: Tensor) -> Stored:
    """A table in a type that numpy knows."""
    weight_LD = weight_LD.detach()
    array: Stored = (weight_LD.view(torch.int16) if weight_LD.dtype == torch.bfloat16 else weight_LD).numpy()
    return array


def _in_parts(loop: Callable[..., None], rows_PD: Tensor, *arguments: Any) -> None:
    """Call `loop` with the bounds of these rows, or in parallel on parts of them if there are enough."""
    rows, parts = rows_PD.shape[0], min(torch.get_num_threads(), rows_PD.numel() // WORTH_A_THREAD)
    if parts <= 1:
        loop(*arguments, 0, rows)
    else:
        edges = [rows * part // parts for part in range(parts + 1)]
        in_threads(loop, [(*arguments, *edge) for edge in pairwise(edges)])


@jit
def _add_mean_squares(
    total_L: Floats, ids_P: NDArray[np.int64], g_PD: Floats, total_P: Floats, start: int, end: int
) -> None:
    width = g_PD.shape[1]
    squares_D = np.empty(width, g_PD.dtype)
    for place in range(start, end):
        if place + AHEAD < end:
            ask_for(total_L, ids_P[place + AHEAD], ids_P[place + AHEAD] + 1)
        for d in range(width):
            squares_D[d] = g_PD[place, d] * g_PD[place, d]
        left = width
        while left > 1:
            half = (left + 1) // 2
            for d in range(left - half):
                squares_D[d] += squares_D[half + d]
            left = half
        total_P[place] = total_L[ids_P[place]] + squares_D[0] / total_L.dtype.type(width)
        total_L[ids_P[place]] = total_P[place]


@jit
def _add_by_moments(
    weight_LD: Stored,
    moments_L2D: Floats,
    ids_P: NDArray[np.int64],
    g_PD: Floats,
    weight1: float,
    beta2: float,
    weight2: float,
    eps: float,
    decay: float,
    factor: float,
    noise_PD: Noise,
    start: int,
    end: int,
) -> None:
    width = g_PD.shape[1]
    flat_weight, flat_moments = weight_LD.reshape(-1), moments_L2D.reshape(-1)
    number = g_PD.dtype.type
    rate, kept, added, least = number(weight1), number(beta2), number(weight2), number(eps)
    shrunk, step = number(decay), number(factor)
    for place in range(start, end):
        if place + AHEAD < end:
            coming = ids_P[place + AHEAD] * width
            ask_for(flat_moments, 2 * coming, 2 * (coming + width))
            ask_for(flat_weight, coming, coming + width)
        row = ids_P[place]
        for d in range(width):
            g = g_PD[place, d]
            mean = fma(rate, g - moments_L2D[row, 0, d], moments_L2D[row, 0, d])
            square = fma(added * g, g, moments_L2D[row, 1, d] * kept)
            moments_L2D[row, 0, d] = mean
            moments_L2D[row, 1, d] = square
            change = np.divide(mean, np.sqrt(square) + least) * step  # no check for 0, unlike `/`
            _change(weight_LD, row, place, d, shrunk, change, noise_PD)


@jit
def _add(
    weight_LD: Stored,
    ids_P: NDArray[np.int64],
    direction_PD: Floats,
    decay: float,
    factor_P: Floats,
    noise_PD: Noise,
    start: int,
    end: int,
) -> None:
    width = direction_PD.shape[1]
    flat = weight_LD.reshape(-1)
    shrunk = direction_PD.dtype.type(decay)
    for place in range(start, end):
        if place + AHEAD < end:
            coming = ids_P[place + AHEAD] * width
            ask_for(flat, coming, coming + width)
        for d in range(width):
            change = direction_PD[place, d] * factor_P[place]
            _change(weight_LD, ids_P[place], place, d, shrunk, change, noise_PD)


@jit
def _change(weight_LD: Stored, row: int, place: int, d: int, decay: Number, change: Number, noise_PD: Noise) -> None:
    """One number of the table; as in `tables.rounded_at_random` if there is noise."""
    after = widened(weight_LD[row, d]) * decay + change
    if noise_PD is None:
        weight_LD[row, d] = after
    else:
        weight_LD[row, d] = (np.float32(after).view(np.int32) + (np.int32(noise_PD[place, d]) & 0xFFFF)) >> 16
