"""Binary losses given by two curves: the loss of a positive and of a negative as functions of the score.

Formula:  l(i,l) = y_il * positive(s_il) + (1 - y_il) * negative(s_il)

Both return their slopes, so that only one slope per cell is kept for the gradient, and streaming the negatives of all
labels needs no targets.
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
    """A binary loss given by two curves; targets between 0 and 1 interpolate."""

    @abstractmethod
    def positive(self, s_QP: Tensor) -> Curve:
        """The loss of positives with these scores, which are finite, and its slope."""

    @abstractmethod
    def negative(self, s_QP: Tensor) -> Curve:
        """The loss of negatives with these scores and its slope; both are 0 at -inf (an absent candidate)."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        l_QP: Tensor = _Mixed.apply(s_QP, y_QP, self)  # type: ignore[no-untyped-call]
        return l_QP

    def of_negatives(self, s_QP: Tensor) -> tuple[Tensor, Tensor]:
        value_QP, slope_QP = self.negative(s_QP)
        return value_QP.sum(), slope_QP


class _Mixed(torch.autograd.Function):
    """The values of all cells; keeps their slopes for the backward pass."""

    @staticmethod
    def forward(ctx: Any, s_QP: Tensor, y_QP: Tensor, loss: CurveLoss) -> Tensor:
        negative = loss.negative(s_QP)
        positive = loss.positive(s_QP.masked_fill(y_QP == 0, 0))  # 0 times the loss of an absent candidate must be 0
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
