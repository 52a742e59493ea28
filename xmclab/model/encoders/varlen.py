"""Attention within packed texts: one call on any device, by one of these roads.

varlen     half precision from compute capability 8.0 on: the variable-length kernel of torch's public interface
flash      the same kernel, in versions of torch without that interface
efficient  float32, and older cards: another kernel of torch
grouped    elsewhere, and for windows that `efficient` does not have: a matrix for the texts of each length

The roads of a GPU take all texts at once, and wait for nothing. They have no dropout of attention weights. If no kernel
takes the numbers, that is an error: torch would go on by plain products, text by text.
"""

from __future__ import annotations

import contextlib
import inspect
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from xmclab.errors import ConfigError, Problem
from xmclab.model.device import multiplies, name_of
from xmclab.objectives.products import operands_in

Road = Literal["varlen", "flash", "efficient", "grouped"]

WIDEST = 256  # head of the flash kernels
ALIGNED = 8  # numbers: the width of a head is padded to a multiple of it
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def road_of(device: torch.device, dtype: torch.dtype, width: int) -> Road:
    """The road for numbers of this type, in heads of this width.

    Raises:
        ConfigError: no kernel of the GPU takes them.
    """
    if device.type != "cuda":
        return "grouped"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        hint = "use precision=auto or precision=float32, or set encoder.packing=off"
        raise ConfigError(Problem("encoder.packing=auto", f"{device} has no fused attention in {name_of(dtype)}", hint))
    half = dtype != torch.float32 and multiplies(device, torch.bfloat16)
    if half and width <= WIDEST and torch.backends.cuda.is_flash_attention_available():
        return "varlen" if _varlen() else "flash"
    return "efficient"


@cache
def _varlen() -> Any:
    """torch's public function; None if it is missing (torch < 2.10), or has no window or scale."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"scale", "window_size"} <= inspect.signature(varlen_attn).parameters.keys() else None


def has_window(road: Road) -> bool:
    """Whether a road of a GPU can leave out what is too far apart."""
    names = {argument.name for argument in torch.ops.aten._flash_attention_forward.default._schema.arguments}
    return road == "varlen" or (road == "flash" and "window_size_left" in names)


def fused_attention(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    offset_B: Tensor,
    longest: int,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """y_THD on a GPU, without dropout.

    Args:
        offset_B: [B + 1] int32, where each text begins.
        longest: length of the longest text.
        window: tokens this far apart do not see each other; for roads that have one.
    """
    width, dtype = q_THD.shape[-1], compute_dtype(q_THD)
    q_THD, k_THD, v_THD = (_aligned(x.to(dtype)) for x in (q_THD, k_THD, v_THD))
    if scale == q_THD.shape[-1] ** -0.5:
        scale = None  # that is the default
    elif scale is None and width != q_THD.shape[-1]:
        scale = width**-0.5
    near = -1 if window is None or window >= longest else window - 1
    road = road_of(q_THD.device, dtype, q_THD.shape[-1])
    y_THD = _CALLS[road](q_THD, k_THD, v_THD, offset_B, longest, scale, near)
    return y_THD[..., :width]


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that attention is computed in: that of autocast, if it is on."""
    return operands_in(x.dtype, x.device.type)


def _aligned(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % ALIGNED
    return F.pad(x, (0, missing)) if missing else x


def _by_varlen(q: Tensor, k: Tensor, v: Tensor, offset: Tensor, longest: int, scale: float | None, near: int) -> Tensor:
    both = offset, offset, longest, longest
    mixed: Tensor = _varlen()(q, k, v, *both, scale=scale, window_size=(near, near))
    return mixed


def _by_flash(q: Tensor, k: Tensor, v: Tensor, offset: Tensor, longest: int, scale: float | None, near: int) -> Tensor:
    both = offset, offset, longest, longest
    window = {} if near < 0 else {"window_size_left": near, "window_size_right": near}
    mixed: Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *both, 0.0, False, False, scale=scale, **window)[0]
    return mixed


def _by_efficient(q: Tensor, k: Tensor, v: Tensor, offset: Tensor, longest: int, scale: float | None, _: int) -> Tensor:
    backward = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    parts = [x.unsqueeze(0) for x in (q, k, v)]
    both = offset, offset, longest, longest
    mixed: Tensor = torch.ops.aten._efficient_attention_forward(*parts, None, *both, 0.0, 0, backward, scale=scale)[0]
    return mixed.squeeze(0)


_CALLS = {"varlen": _by_varlen, "flash": _by_flash, "efficient": _by_efficient}


@contextlib.contextmanager
def math_refused() -> Any:
    """Around calls of torch's own attention on a GPU: only fused kernels.

    Raises:
        ConfigError: there is none for these tensors.
    """
    try:
        with sdpa_kernel(FUSED):
            yield
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        reason = "no fused attention kernel for texts of this length in windows"
        raise ConfigError(Problem("encoder.packing=auto", reason, "set encoder.packing=off")) from error
