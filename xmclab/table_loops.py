"""Updates of the rows of a table in one pass over them, compiled; the torch versions in `tables` define the numbers.

Rows lie anywhere in memory: each is asked for some rows ahead of its turn, and threads share out many of them.
Sums and products are rounded as there; only a root may differ in its last bit, where torch's is not the nearest number.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from xmclab.accelerator import in_threads, jit
from xmclab.intrinsics import ask_for, fma

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]  # float32 or float64, all of a call alike
    Number = np.floating[Any]  # of the same kind
    Stored = NDArray[Any]  # a table: floats, or the bits of bfloat16 as int16
    Noise = NDArray[np.int32] | None  # for the rounding to bfloat16

AHEAD = 8  # rows between asking for one and its turn
WORTH_A_THREAD = 1 << 18  # numbers: another thread starts too late to help with fewer


def gather(weight_LD: Tensor, ids_P: Tensor, scale: float) -> Tensor:
    """scale * weight[ids]"""
    rows_PD = weight_LD.new_empty(len(ids_P), weight_LD.shape[1])
    weight, ids, rows = weight_LD.detach().numpy(), ids_P.numpy(), rows_PD.numpy()
    number = rows.dtype.type(scale)
    _in_parts(lambda part: _gather(weight, ids[part], number, rows[part]), rows_PD)
    return rows_PD


def add_by_moments(
    weight_LD: Tensor,
    moments_L2D: Tensor,
    ids_P: Tensor,
    g_PD: Tensor,
    rates: tuple[float, float, float, float],
    decay: float,
    factor: float,
    noise_PD: Tensor | None,
) -> None:
    """`tables.add_by_moments`."""
    number = g_PD.numpy().dtype.type
    weight, moments, ids, g = _bits(weight_LD), moments_L2D.numpy(), ids_P.numpy(), g_PD.contiguous().numpy()
    numbers = [number(x) for x in (*rates, decay, factor)]

    def update(part: slice) -> None:
        noise = None if noise_PD is None else noise_PD[part].numpy()
        _add_by_moments(weight, moments, ids[part], g[part], *numbers, noise)  # type: ignore[call-arg]

    _in_parts(update, g_PD)


def add(
    weight_LD: Tensor, ids_P: Tensor, direction_PD: Tensor, decay: float, factor_P: Tensor, noise_PD: Tensor | None
) -> None:
    """`tables.add`."""
    weight, ids, factors = _bits(weight_LD), ids_P.numpy(), factor_P.numpy()
    direction = direction_PD.contiguous().numpy()

    def update(part: slice) -> None:
        noise = None if noise_PD is None else noise_PD[part].numpy()
        _add(weight, ids[part], direction[part], factors.dtype.type(decay), factors[part], noise)

    _in_parts(update, direction_PD)


def _bits(weight_LD: Tensor) -> Stored:
    """A table in a type that numpy knows."""
    weight_LD = weight_LD.detach()
    array: Stored = (weight_LD.view(torch.int16) if weight_LD.dtype == torch.bfloat16 else weight_LD).numpy()
    return array


def _in_parts(update: Callable[[slice], None], g_PD: Tensor) -> None:
    """Call `update` for parts of the rows, side by side if there are enough of them."""
    parts = max(1, min(torch.get_num_threads(), g_PD.numel() // WORTH_A_THREAD))
    edges = [len(g_PD) * part // parts for part in range(parts + 1)]
    in_threads(update, [slice(*edge) for edge in pairwise(edges)])


@jit
def _gather(weight_LD: Floats, ids_P: NDArray[np.int64], scale: Number, rows_PD: Floats) -> None:
    width = weight_LD.shape[1]
    flat = weight_LD.reshape(-1)
    for place in range(len(ids_P)):
        if place + AHEAD < len(ids_P):
            coming = ids_P[place + AHEAD] * width
            ask_for(flat, coming, coming + width)
        row = ids_P[place]
        if not 0 <= row < len(weight_LD):
            raise IndexError("no such row in the table")
        for d in range(width):
            rows_PD[place, d] = weight_LD[row, d] * scale


@jit
def _add_by_moments(
    weight_LD: Stored,
    moments_L2D: Floats,
    ids_P: NDArray[np.int64],
    g_PD: Floats,
    weight1: Number,
    beta2: Number,
    weight2: Number,
    eps: Number,
    decay: Number,
    factor: Number,
    noise_PD: Noise,
) -> None:
    width = g_PD.shape[1]
    flat_weight, flat_moments = weight_LD.reshape(-1), moments_L2D.reshape(-1)
    for place in range(len(ids_P)):
        if place + AHEAD < len(ids_P):
            coming = ids_P[place + AHEAD] * width
            ask_for(flat_moments, 2 * coming, 2 * (coming + width))
            ask_for(flat_weight, coming, coming + width)
        row = ids_P[place]
        for d in range(width):
            g = g_PD[place, d]
            mean = fma(weight1, g - moments_L2D[row, 0, d], moments_L2D[row, 0, d])
            square = fma(weight2 * g, g, moments_L2D[row, 1, d] * beta2)
            moments_L2D[row, 0, d] = mean
            moments_L2D[row, 1, d] = square
            change = np.divide(mean, np.sqrt(square) + eps) * factor  # no check for 0, unlike `/`
            _change(weight_LD, row, place, d, decay, change, noise_PD)


@jit
def _add(
    weight_LD: Stored,
    ids_P: NDArray[np.int64],
    direction_PD: Floats,
    decay: Number,
    factor_P: Floats,
    noise_PD: Noise,
) -> None:
    width = direction_PD.shape[1]
    flat = weight_LD.reshape(-1)
    for place in range(len(ids_P)):
        if place + AHEAD < len(ids_P):
            coming = ids_P[place + AHEAD] * width
            ask_for(flat, coming, coming + width)
        for d in range(width):
            change = direction_PD[place, d] * factor_P[place]
            _change(weight_LD, ids_P[place], place, d, decay, change, noise_PD)


@jit
def _change(weight_LD: Stored, row: int, place: int, d: int, decay: Number, change: Number, noise_PD: Noise) -> None:
    """One number of the table; as in `tables.rounded_at_random` if there is noise."""
    if noise_PD is None:
        weight_LD[row, d] = weight_LD[row, d] * decay + change
    else:
        before = np.int32(np.int32(weight_LD[row, d]) << 16).view(np.float32)
        after = np.float32(before * decay + change).view(np.int32)
        weight_LD[row, d] = (after + noise_PD[place, d]) >> 16
