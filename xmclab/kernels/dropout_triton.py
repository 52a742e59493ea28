"""Keyed dropout on a GPU in one launch each way, in Triton; `model/dropout.py` defines the numbers, to the bit.

A step of a six-layer transformer launches 1,507 kernels with it and 2,522 without (`benchmarks/gpu/launches.md`), and
without, a dozen of them for each dropout pass over numbers as large as its input. Nothing was timed on a GPU yet.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

COLUMNS = 1024  # of a row, at once
FIRST, SECOND = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)  # of SplitMix64
FIRST32, SECOND32 = tl.constexpr(0x7FEB352D), tl.constexpr(0x846CA68B)  # of lowbias32


def drop(x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
    """`dropout.drop`; declines what has heads between its rows and columns."""
    if x.ndim != key.ndim + 1 or x.dtype == torch.float64:
        return NotImplemented  # type: ignore[no-any-return]
    y: Tensor = _Dropped.apply(x, key, site, rate)  # type: ignore[no-untyped-call]
    return y


def trial() -> None:
    """Raise where Triton cannot compile; nobody waits for the launch."""
    dropped(torch.ones(1, 8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda"), 0, 0.5)


class _Dropped(torch.autograd.Function):
    """Draws again in its backward pass: nothing of the size of `x` is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
        ctx.save_for_backward(key)
        ctx.site, ctx.rate = site, rate
        y: Tensor = dropped(x.contiguous(), key.contiguous(), site, rate)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (key,) = ctx.saved_tensors
        dx: Tensor = dropped(g.contiguous(), key.contiguous(), ctx.site, ctx.rate)
        return dx, None, None, None


@torch.library.custom_op("xmclab::dropped", mutates_args=())
def dropped(x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
    """Rows of `x`, by their keys."""
    y, columns = torch.empty_like(x), x.shape[-1]
    limit = min(round(rate * 2**32), 2**32 - 1) - 2**31
    if x.numel():
        grid = key.numel(), triton.cdiv(columns, COLUMNS)
        drop_rows[grid](x, key, y, site, columns, limit, 1 / (1 - rate), BLOCK=COLUMNS)
    return y


@dropped.register_fake
def _(x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
    return torch.empty_like(x)


@triton.jit(do_not_specialize=["site", "limit"])  # type: ignore[untyped-decorator]
def drop_rows(x, key, y, site, columns, limit, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of columns of one row; integers wrap around, as those of torch do."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = (tl.load(key + row) ^ site).to(tl.uint64, bitcast=True)
    k = (k ^ (k >> 30)) * FIRST
    k = (k ^ (k >> 27)) * SECOND
    k = k ^ (k >> 31)
    start, stride = k.to(tl.uint32), (k >> 32).to(tl.uint32) | 1

    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    u = start + column.to(tl.uint32) * stride
    u = (u ^ (u >> 16)) * FIRST32
    u = (u ^ (u >> 15)) * SECOND32
    u = u ^ (u >> 16)
    kept = u.to(tl.int32, bitcast=True) >= limit
    here = row * columns + column
    value = tl.load(x + here, mask=inside, other=0.0)
    scaled = (value.to(tl.float32) * tl.where(kept, 1.0, 0.0) * factor).to(value.dtype)
    tl.store(y + here, scaled, mask=inside)
