"""Where scores come from, a block of labels at a time, and where their gradient goes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Evaluation:
    """The value of an objective."""

    total: Tensor  # scalar, differentiable
    values: dict[str, Tensor]  # of each term and direction, as `ds/q2l`; detached scalars


class Scores(ABC):
    """Where the scores of a block of labels come from, and where their gradient goes."""

    labels: range  # of this process, among those of the truth
    like: Tensor  # dtype and device of sums and losses
    bound: float = math.inf  # of the absolute scores, if known
    block: int | None = None  # labels per block; None: by size
    inputs: tuple[Tensor, ...] = ()  # what the scores are computed from, if autograd asks for
    gradients: tuple[Tensor, ...] = ()  # their gradients, after `backward`

    @abstractmethod
    def write(self, block: slice, scale: float, out_QB: Tensor) -> None:
        """Write `scale` times the scores of these labels."""

    def operands(self, block: slice) -> tuple[Tensor, Tensor]:
        """Optional, for passes that never write scores: the vectors (q_QD, z_BD) of which these are products."""
        raise NotImplementedError(f"{type(self).__name__} has no vectors")

    @abstractmethod
    def backward(self, block: slice, g_QB: Tensor) -> None:
        """Take the gradient of the scores of the latest block, in memory that the next one overwrites."""


class Matrix(Scores):
    """Scores that are given; their gradient is a matrix."""

    def __init__(self, s_QP: Tensor, bound: float = math.inf) -> None:
        self.s_QP, self.like, self.bound = s_QP, s_QP, bound
        self.labels = range(s_QP.shape[1])
        self.inputs = (s_QP,)

    def write(self, block: slice, scale: float, out_QB: Tensor) -> None:
        torch.mul(self.s_QP[:, block], scale, out=out_QB)

    def backward(self, block: slice, g_QB: Tensor) -> None:
        if g_QB.shape == self.s_QP.shape:
            self.gradients = (g_QB,)
            return
        if block.start == 0:
            self.gradients = (torch.empty_like(self.s_QP),)
        self.gradients[0][:, block] = g_QB
