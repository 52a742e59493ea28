"""Keyed dropout in one pass: draws, mask and product, compiled; `model/dropout.py` defines the numbers.

A step of a transformer of 2 layers and width 128 with 1053 queries and 3000 labels takes 1.12 times as long without
(the drawing alone 14 times). See `benchmarks/speed/dropout.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xmclab.kernels.dispatch import in_threads, jit, jit_with

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]  # float32 or float64, all of a call alike
    Keys = NDArray[np.uint64]

WORTH_A_THREAD = 1 << 17  # numbers: with fewer, another thread starts too late to help
HEAD_BITS = np.uint32(20)
u32, u64 = np.uint32, np.uint64
scalar_jit = jit_with(forceinline=True)


def drop(x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
    """`dropout.drop`."""
    y: Tensor = _Dropped.apply(x, key, site, rate)  # type: ignore[no-untyped-call]
    return y


class _Dropped(torch.autograd.Function):
    """Its own backward, which draws again: nothing of the size of `x` is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
        ctx.save_for_backward(key)
        ctx.site, ctx.rate = site, rate
        return _drop_rows(x, key, site, rate)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (key,) = ctx.saved_tensors
        return _drop_rows(g, key, ctx.site, ctx.rate), None, None, None


def _drop_rows(x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
    x = x.detach().contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    heads = x.shape[1] if x.ndim > key.ndim + 1 else 1
    places = key.shape[-1] if heads > 1 else key.numel()
    rows = x.numel() // max(columns, 1)
    arrays = x.numpy().reshape(rows, columns), _keys(key), y.numpy().reshape(rows, columns)
    _in_parts(_drop, rows, x.numel(), *arrays, heads, places, *_numbers(site, rate))
    return y


def drop_items(x_T: Tensor, key_B: Tensor, offset_B: Tensor, number_T: Tensor, site: int, rate: float) -> Tensor:
    """`dropout.drop_items`."""
    y_T = torch.empty_like(x_T)
    arrays = x_T.numpy(), _keys(key_B), offset_B.numpy(), number_T.numpy(), y_T.numpy()
    _in_parts(_drop_items, len(key_B), len(x_T), *arrays, *_numbers(site, rate))
    return y_T


def _keys(key: Tensor) -> Keys:
    keys: Keys = key.contiguous().numpy().reshape(-1).view(np.uint64)
    return keys


def _numbers(site: int, rate: float) -> tuple[np.uint64, np.int32, float]:
    """The site, the least draw that keeps a number, and the factor of those that are kept."""
    limit = min(round(rate * 2**32), 2**32 - 1) - 2**31
    return u64(site % 2**64), np.int32(limit), 1 / (1 - rate)


def _in_parts(loop: Callable[..., None], rows: int, numbers: int, *arguments: Any) -> None:
    """Call `loop` with the bounds of these rows, or in parallel on parts of them if there are enough."""
    parts = min(torch.get_num_threads(), numbers // WORTH_A_THREAD)
    edges = [rows * part // max(parts, 1) for part in range(max(parts, 1) + 1)]
    in_threads(loop, [(*arguments, *edge) for edge in pairwise(edges)])


@scalar_jit
def _mixed(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> u64(27))) * u64(0x94D049BB133111EB)
    return x ^ (x >> u64(31))


@scalar_jit
def _draw(start: np.uint32, stride: np.uint32, number: np.uint32) -> np.int32:
    x = u32(start + u32(number * stride))
    x = u32(u32(x ^ u32(x >> u32(16))) * u32(0x7FEB352D))
    x = u32(u32(x ^ u32(x >> u32(15))) * u32(0x846CA68B))
    return np.int32(u32(x ^ u32(x >> u32(16))))


@jit
def _drop(
    x_RC: Floats,
    key_K: Keys,
    y_RC: Floats,
    heads: int,
    places: int,
    site: np.uint64,
    limit: np.int32,
    scale: float,
    start: int,
    end: int,
) -> None:
    columns, factor, nothing = x_RC.shape[1], x_RC.dtype.type(scale), x_RC.dtype.type(0)
    for row in range(start, end):
        # Rows come by text, then head, then place.
        key = _mixed(key_K[row // (heads * places) * places + row % places] ^ site)
        first, stride = u32(key), u32((key >> u64(32)) | u64(1))
        head = u32(u32(row // places % heads) << HEAD_BITS)
        for column in range(columns):
            kept = _draw(first, stride, u32(head + u32(column))) >= limit
            y_RC[row, column] = x_RC[row, column] * (factor if kept else nothing)


@jit
def _drop_items(
    x_T: Floats,
    key_B: Keys,
    offset_B: NDArray[np.int32],
    number_T: NDArray[np.int32],
    y_T: Floats,
    site: np.uint64,
    limit: np.int32,
    scale: float,
    start: int,
    end: int,
) -> None:
    factor, nothing = x_T.dtype.type(scale), x_T.dtype.type(0)
    for text in range(start, end):
        key = _mixed(key_B[text] ^ site)
        first, stride = u32(key), u32((key >> u64(32)) | u64(1))
        last = offset_B[text + 1] if text + 1 < len(offset_B) else len(x_T)
        for place in range(offset_B[text], last):
            kept = _draw(first, stride, u32(number_T[place])) >= limit
            y_T[place] = x_T[place] * (factor if kept else nothing)
