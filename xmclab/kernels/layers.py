"""The two halves of a BERT layer, compiled around their matrix products: values and gradients in closed form.

y = norm(x + drop(inner(x W1' + b1) W2' + b2))   with inner = attention within each text, or GELU

Equal to torch's modules within rounding, except for dropout's draws: whether a place is dropped is a hash of a seed and
the place, so that only the seed is stored (it comes from torch's generator), and the backward pass repeats the draws.
Import it through `dispatch`, as this module loads numba. Matrices are float32 on the CPU; rows are cut into slices that
fit the cache, always at the same places, so that sums do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from xmclab.kernels import layer_loops as loops
from xmclab.kernels.dispatch import in_threads
from xmclab.kernels.layer_loops import Drop

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from xmclab.kernels.bert import Groups, Half, Layer

    Floats = NDArray[np.float32]
    Places = NDArray[np.int64]

CELLS_OF_SLICE = 1 << 16
f32, u32 = np.float32, np.uint32


class Inner(Protocol):
    """What is between the two products of a sublayer, from the first one's output without its bias."""

    def forward(self, u_TU: Tensor, bias_U: Tensor) -> Tensor:
        """a_TA; overwrites u by what the backward pass needs."""

    def backward(self, grad_TA: Tensor, kept_TU: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of u and of the bias."""


class Gelu:
    """u Φ(u), exact."""

    def forward(self, u_TU: Tensor, bias_U: Tensor) -> Tensor:
        a_TU = torch.empty_like(u_TU)
        u, bias, a = _arrays(u_TU, bias_U, a_TU)
        in_threads(lambda cut: loops.gelu(*cut, u, bias, a), _cuts(*u.shape))
        return a_TU

    def backward(self, grad_TA: Tensor, kept_TU: Tensor) -> tuple[Tensor, Tensor]:
        du_TU = torch.empty_like(grad_TA)
        grad, slope, du = _arrays(grad_TA, kept_TU, du_TU)
        cuts = _cuts(*grad.shape)
        sums_SU = np.zeros((len(cuts), grad.shape[1]), np.float32)
        in_threads(lambda n: loops.gelu_back(*cuts[n], grad, slope, du, sums_SU[n]), range(len(cuts)))
        return du_TU, torch.from_numpy(sums_SU.sum(axis=0))


@dataclass(frozen=True)
class Attention:
    """Softmax attention of every text to itself; u are the queries, keys and values side by side."""

    offset_B: Places  # [B + 1] where the packed texts start
    longest: int
    heads: int
    drop: Drop

    def _slices(self) -> list[tuple[int, int]]:
        """Ranges of texts with about equal numbers of tokens; a thread gets every second, as the longest come last."""
        offset = self.offset_B
        marks = np.arange(0, offset[-1], max(1, int(offset[-1]) // 16))
        bounds = np.unique(np.append(np.searchsorted(offset, marks), len(offset) - 1)).tolist()
        slices = list(pairwise(bounds))
        return slices[::2] + slices[1::2]

    def forward(self, u_TU: Tensor, bias_U: Tensor) -> Tensor:
        mixed_TD = u_TU.new_empty(len(u_TU), u_TU.shape[1] // 3)
        u, bias, mixed = self._by_head(u_TU, 3), self._by_head(bias_U, 3), self._by_head(mixed_TD)
        in_threads(
            lambda texts: loops.attend(*texts, self.offset_B, self.longest, self.drop, u, bias, mixed), self._slices()
        )
        return mixed_TD

    def backward(self, grad_TA: Tensor, kept_TU: Tensor) -> tuple[Tensor, Tensor]:
        slices = self._slices()
        du_TU, sums_SU = torch.empty_like(kept_TU), kept_TU.new_zeros(len(slices), kept_TU.shape[1])
        u, grad, du = self._by_head(kept_TU, 3), self._by_head(grad_TA), self._by_head(du_TU, 3)
        sums = self._by_head(sums_SU, 3)
        in_threads(
            lambda n: loops.attend_back(*slices[n], self.offset_B, self.longest, self.drop, u, grad, du, sums[n]),
            range(len(slices)),
        )
        return du_TU, sums_SU.sum(dim=0)

    def _by_head(self, x: Tensor, *parts: int) -> Floats:
        """With the last dimension by part (query, key, value), if it has those, and head."""
        array: Floats = x.detach().unflatten(-1, (*parts, self.heads, -1)).numpy()
        return array


@dataclass(frozen=True)
class Weights:
    """The parameters of a sublayer."""

    first_UD: Tensor
    first_bias_U: Tensor
    second_DA: Tensor
    second_bias_D: Tensor
    gain_D: Tensor
    shift_D: Tensor
    eps: float


def attention(layer: Layer, heads: int) -> Half | None:
    """The attention of a layer, or None if one of its modules is not as torch makes it."""
    parts = layer.query, layer.key, layer.value
    weights = _weights_of(parts, layer.out, layer.out_norm)
    rate, out_rate = _rate_of(layer.attention_dropout), _rate_of(layer.out_dropout)
    if weights is None or rate is None or out_rate is None:
        return None

    def run(x_TD: Tensor, groups: Groups) -> Tensor:
        lengths_B = np.repeat(*np.array(groups).T[::-1])
        offset_B = np.concatenate([[0], np.cumsum(lengths_B)])
        inner = Attention(offset_B, groups[-1][1], heads, Drop.draw(rate))
        return sublayer(x_TD, weights, inner, Drop.draw(out_rate))

    return run


def feed_forward(layer: Layer) -> Half | None:
    """The feed-forward part of a layer, or None if one of its modules is not as torch makes it, or not a GELU."""
    weights, rate = _weights_of((layer.up,), layer.down, layer.down_norm), _rate_of(layer.down_dropout)
    if weights is None or rate is None or not _is_gelu(layer.activation):
        return None
    return lambda x_TD, _: sublayer(x_TD, weights, Gelu(), Drop.draw(rate))


def _is_gelu(activation: Callable[[Tensor], Tensor]) -> bool:
    from transformers.activations import GELUActivation

    return _is(activation, GELUActivation)


def _is(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is exactly of this class and has no hooks, so that its formula can replace it."""
    return (
        type(module) is kind
        and "forward" not in vars(module)  # which libraries replace to move or to quantise weights
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
    )


def _rate_of(dropout: Any) -> float | None:
    if _is(dropout, nn.Identity):
        return 0.0
    if not _is(dropout, nn.Dropout) or dropout.p == 1:
        return None
    return float(dropout.p) if dropout.training else 0.0


def _weights_of(firsts: Sequence[Any], second: Any, norm: Any) -> Weights | None:
    linears = *firsts, second
    if not (all(_is(linear, nn.Linear) for linear in linears) and _is(norm, nn.LayerNorm)):
        return None
    if any(module.weight is None or module.bias is None for module in (*linears, norm)):
        return None
    first_UD, first_bias_U = (
        torch.cat([getattr(m, name) for m in firsts]) if len(firsts) > 1 else getattr(firsts[0], name)
        for name in ("weight", "bias")
    )
    return Weights(first_UD, first_bias_U, second.weight, second.bias, norm.weight, norm.bias, norm.eps)


def sublayer(x_TD: Tensor, weights: Weights, inner: Inner, drop: Drop) -> Tensor:
    """norm(x + drop(inner(x W1' + b1) W2' + b2))."""
    w = weights
    parameters = w.first_UD, w.first_bias_U, w.second_DA, w.second_bias_D, w.gain_D, w.shift_D
    if torch.is_grad_enabled():
        y_TD: Tensor = _Sublayer.apply(x_TD, *parameters, w.eps, inner, drop)
        return y_TD
    return _forward(x_TD, *parameters, w.eps, inner, drop)[0]


def _forward(
    x_TD: Tensor,
    first_UD: Tensor,
    first_bias_U: Tensor,
    second_DA: Tensor,
    second_bias_D: Tensor,
    gain_D: Tensor,
    shift_D: Tensor,
    eps: float,
    inner: Inner,
    drop: Drop,
) -> tuple[Tensor, ...]:
    """y, and what the backward pass needs."""
    u_TU = x_TD @ first_UD.T
    a_TA = inner.forward(u_TU, first_bias_U)
    normal_TD = a_TA @ second_DA.T
    y_TD, spread_T = torch.empty_like(normal_TD), normal_TD.new_empty(len(normal_TD))
    normal, *arrays = _arrays(normal_TD, x_TD, second_bias_D, gain_D, shift_D, spread_T, y_TD)
    in_threads(lambda cut: loops.join(*cut, normal, f32(eps), drop, *arrays), _cuts(*normal.shape))
    return y_TD, u_TU, a_TA, normal_TD, spread_T


class _Sublayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *others: Any) -> Tensor:
        y_TD, *kept = _forward(x_TD, *others)
        first_UD, _, second_DA, _, gain_D, _, _, ctx.inner, ctx.drop = others
        ctx.save_for_backward(x_TD, first_UD, second_DA, gain_D, *kept)
        return y_TD

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, first_UD, second_DA, gain_D, u_TU, a_TA, normal_TD, spread_T = ctx.saved_tensors
        needs_x, needs_first, _, needs_second, *_ = ctx.needs_input_grad
        dx_TD, dh_TD = torch.empty_like(normal_TD), torch.empty_like(normal_TD)
        grad, normal, spread, gain, dx, dh = _arrays(grad_TD.contiguous(), normal_TD, spread_T, gain_D, dx_TD, dh_TD)
        cuts = _cuts(*normal_TD.shape)
        sums_S3D = np.zeros((len(cuts), 3, normal_TD.shape[1]), np.float32)

        def join_back(n: int) -> None:
            loops.join_back(*cuts[n], ctx.drop, grad, normal, spread, gain, dx, dh, sums_S3D[n])

        in_threads(join_back, range(len(cuts)))
        bias_D, gain_grad_D, shift_D = torch.from_numpy(sums_S3D.sum(axis=0))
        second = dh_TD.T @ a_TA if needs_second else None
        du_TU, first_bias_U = ctx.inner.backward(dh_TD @ second_DA, u_TU)
        first = du_TU.T @ x_TD if needs_first else None
        total_TD = dx_TD.addmm_(du_TU, first_UD) if needs_x else None
        return total_TD, first, first_bias_U, second, bias_D, gain_grad_D, shift_D, None, None, None


def dropout(x_TD: Tensor, module: nn.Module) -> Tensor:
    """A dropout module's output, with our own draws if it is torch's."""
    rate = _rate_of(module)
    if not rate:
        return x_TD if rate == 0 else module(x_TD)
    dropped_TD: Tensor = _Dropout.apply(x_TD, Drop.draw(rate))
    return dropped_TD


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, drop: Drop) -> Tensor:
        ctx.drop = drop
        y_TD = torch.empty_like(x_TD)
        x, y = _arrays(x_TD, y_TD)
        in_threads(lambda cut: loops.drop(*cut, drop, x, y), _cuts(*x.shape))
        return y_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None]:
        return _Dropout.apply(grad_TD.contiguous(), ctx.drop), None


def _arrays(*tensors: Tensor) -> list[Floats]:
    return [tensor.detach().numpy() for tensor in tensors]


def _cuts(rows: int, columns: int) -> list[tuple[int, int]]:
    size = max(1, CELLS_OF_SLICE // max(columns, 1))
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]
