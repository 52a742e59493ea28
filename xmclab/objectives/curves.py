"""Binary losses that are two curves: what a positive costs and what a negative costs, by its score.

Formula:  l(i,l) = y_il * positive(s_il) + (1 - y_il) * negative(s_il)

Both come with their slopes, so that nothing but a slope per cell is kept for the gradient, and negatives of all labels
need no targets.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xmclab.api import BinaryLoss

Curve = tuple[Tensor, Tensor]  # (value, slope) at every score


@dataclass
class CurveLoss(BinaryLoss):
    """A binary loss by its two curves; targets between 0 and 1 mix them."""

    @abstractmethod
    def positive(self, s_QP: Tensor) -> Curve:
        """Of a positive with these scores, which are finite."""

    @abstractmethod
    def negative(self, s_QP: Tensor) -> Curve:
        """Of a negative with these scores; both are 0 at -inf, an absent candidate."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        l_QP: Tensor = _Mixed.apply(s_QP, y_QP, self)  # type: ignore[no-untyped-call]
        return l_QP

    def of_negatives(self, s_QP: Tensor) -> tuple[Tensor, Tensor]:
        value_QP, slope_QP = self.negative(s_QP)
        return value_QP.sum(), slope_QP


class _Mixed(torch.autograd.Function):
    """The values of all cells; their slopes are kept for the way back."""

    @staticmethod
    def forward(ctx: Any, s_QP: Tensor, y_QP: Tensor, loss: CurveLoss) -> Tensor:
        negative = loss.negative(s_QP)
        positive = loss.positive(s_QP.masked_fill(y_QP == 0, 0))  # 0 times what an absent candidate costs must be 0
        value_QP, slope_QP = (torch.lerp(*both, y_QP) for both in zip(negative, positive, strict=True))
        ctx.save_for_backward(slope_QP)
        return value_QP

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream_QP: Tensor) -> tuple[Tensor | None, ...]:
        (slope_QP,) = ctx.saved_tensors
        return upstream_QP * slope_QP, None, None


def mirrored(curve: Curve) -> Curve:
    """The curve of s from that of -s."""
    value, slope = curve
    return value, -slope
