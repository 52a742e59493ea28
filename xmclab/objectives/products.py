"""Matrix products whose sums are at least float32, even if the operands are of half precision.

A GPU has kernels for that. Elsewhere, and in versions of torch without them, operands are widened first, which is
exact; with TF32 a GPU still computes the same product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MIXED = "dtype" in torch.ops.aten.addmm.overloads()  # torch >= 2.8


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of losses and sums for operands of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def operands_in(dtype: torch.dtype, device: str) -> torch.dtype:
    """The dtype of matrices of this dtype in products, as autocast wants it."""
    known = dtype != torch.float64 and torch.amp.is_autocast_available(device)
    return torch.get_autocast_dtype(device) if known and torch.is_autocast_enabled(device) else dtype


def multiply(a: Tensor, b: Tensor, out: Tensor, scale: float = 1.0) -> Tensor:
    """out = scale * a @ b"""
    return _add(out, a, b, beta=0, alpha=scale)


def add_product_(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total += a @ b"""
    return _add(total, a, b)


def _add(out: Tensor, a: Tensor, b: Tensor, **factors: float) -> Tensor:
    more: dict[str, Any] = {}
    if a.dtype != out.dtype:
        if MIXED and a.device.type != "cpu":
            more["out_dtype"] = out.dtype
        else:
            a, b = a.to(out.dtype), b.to(out.dtype)
    return torch.addmm(out, a, b, **factors, **more, out=out)  # type: ignore[no-any-return]


def inner_products(q_QD: Tensor, z_PD: Tensor) -> Tensor:
    """q z' under autocast, with a gradient; unlike those of torch, the scores are not rounded to half precision."""
    low = operands_in(torch.promote_types(q_QD.dtype, z_PD.dtype), q_QD.device.type)
    if summed_in(low) == low:
        return q_QD @ z_PD.T
    s_QP: Tensor = _Inner.apply(q_QD.to(low), z_PD.to(low))  # type: ignore[no-untyped-call]
    return s_QP


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_QD: Tensor, z_PD: Tensor) -> Tensor:
        ctx.save_for_backward(q_QD, z_PD)
        return multiply(q_QD, z_PD.T, q_QD.new_empty(len(q_QD), len(z_PD), dtype=summed_in(q_QD.dtype)))

    @staticmethod
    def backward(ctx: Any, g_QP: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q_QD, z_PD = ctx.saved_tensors
        low_QP = g_QP.to(q_QD.dtype)
        pairs = (q_QD, low_QP, z_PD), (z_PD, low_QP.T, q_QD)
        dq_QD, dz_PD = (multiply(g, x, torch.empty_like(like, dtype=g_QP.dtype)) for like, g, x in pairs)
        return dq_QD.to(q_QD.dtype), dz_PD.to(z_PD.dtype)
