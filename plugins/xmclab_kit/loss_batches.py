"""Inputs for the laws of a loss: small batches of scores and targets, and the values a loss gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from xmclab.api import Loss
from xmclab_kit.core import Broken, named, numbers

SCORE_STEP, CELL_STEP = 0.0613, 0.0173  # all scores differ, by amounts that are not round
HUGE = 1e4
WIDE = 12  # candidates of an anchor: some losses look only at the first few


@dataclass(frozen=True)
class Scored:
    """A small batch in float64: scores and targets."""

    s_QP: Tensor
    y_QP: Tensor

    def __str__(self) -> str:
        return named(s_QP=self.s_QP, y_QP=self.y_QP)

    @property
    def transposed(self) -> Scored:
        return Scored(self.s_QP.T.contiguous(), self.y_QP.T.contiguous())

    def take(self, rows: Any, columns: Any) -> Scored:
        return Scored(self.s_QP[rows][:, columns], self.y_QP[rows][:, columns])


@st.composite
def scored(draw: st.DrawFn, mixed: bool = True, soft: bool = True, most_rows: int = 3, most_columns: int = 4) -> Scored:
    """Scores within ±8 and targets; `mixed`: every row has a positive and a negative."""
    rows = draw(st.integers(1, most_rows))
    columns = draw(st.integers(2 if mixed else 1, most_columns))
    patterns = numbers(draw, 2 * rows).view(np.uint16).astype(np.int64)
    patterns = patterns % (2**columns - 2) + 1 if mixed else patterns % 2**columns
    y_QP = torch.from_numpy((patterns[:, None] >> np.arange(columns) & 1).astype(np.float64))
    if soft and draw(st.booleans()):
        y_QP = y_QP / 2
    steps = torch.from_numpy(numbers(draw, rows * columns).view(np.int8).astype(np.float64))
    s_QP = SCORE_STEP * steps + CELL_STEP * torch.arange(rows * columns)
    return Scored(s_QP.view(rows, columns), y_QP)


@st.composite
def huge(draw: st.DrawFn) -> Scored:
    """Scores of 0 and ±1e4."""
    batch = draw(scored(soft=False))
    steps = torch.from_numpy(numbers(draw, batch.s_QP.numel()).astype(np.int64)).view_as(batch.s_QP)
    return replace(batch, s_QP=torch.tensor([0.0, HUGE, -HUGE], dtype=torch.float64)[steps % 3])


@st.composite
def rare(draw: st.DrawFn) -> Scored:
    """Targets of 0 and 1 in which every label is rarer than even, with the log-odds of its frequency as its scores."""
    queries, labels = draw(st.integers(3, 12)), draw(st.integers(1, 4))
    count_P = torch.from_numpy(numbers(draw, labels) % ((queries - 1) // 2) + 1)
    y_QP = (torch.arange(queries).unsqueeze(1) < count_P).double()
    return Scored(y_QP.mean(dim=0).logit().expand_as(y_QP), y_QP)


@dataclass(frozen=True)
class Moved:
    """A batch and an order of its rows and of its columns."""

    batch: Scored
    rows: list[int]
    columns: list[int]

    def __str__(self) -> str:
        return f"{self.batch}\nrows in the order {self.rows}, columns in the order {self.columns}"


@st.composite
def moved(draw: st.DrawFn) -> Moved:
    batch = draw(scored(most_columns=WIDE))
    rows, columns = (draw(st.permutations(range(size))) for size in batch.s_QP.shape)
    return Moved(batch, list(rows), list(columns))


@dataclass(frozen=True)
class Absent:
    """A batch in which one negative candidate of an anchor is absent."""

    batch: Scored
    row: int
    column: int

    def __str__(self) -> str:
        s_QP = self.batch.s_QP.clone()
        s_QP[self.row, self.column] = -math.inf
        return str(Scored(s_QP, self.batch.y_QP))


@st.composite
def absent_negative(draw: st.DrawFn) -> Absent:
    batch = draw(scored(most_columns=WIDE))
    row = draw(st.integers(0, len(batch.s_QP) - 1))
    return Absent(batch, row, draw(st.sampled_from((batch.y_QP[row] == 0).nonzero()[:, 0].tolist())))


def counted(loss: Loss, y_QP: Tensor) -> Tensor:
    """The pairs whose values are read: all cells of a binary loss, else the positives."""
    return torch.ones_like(y_QP, dtype=torch.bool) if loss.kind == "binary" else y_QP > 0


def values(loss: Loss, batch: Scored) -> Tensor:
    """The values that are read, 0 elsewhere; from copies, in case a loss writes into its inputs."""
    l_QP = loss.terms(batch.s_QP.clone(), batch.y_QP.clone())
    return l_QP.masked_fill(~counted(loss, batch.y_QP), 0)


def weights_of(y_QP: Tensor) -> Tensor:
    """Different weights for all cells, so that gradients cannot cancel."""
    return (1 + torch.arange(y_QP.numel(), dtype=y_QP.dtype) / y_QP.numel()).view_as(y_QP)


def values_and_gradient(loss: Loss, batch: Scored) -> tuple[Tensor, Tensor]:
    """The values that are read, and the gradient of their weighted sum."""
    s_QP = batch.s_QP.clone().requires_grad_()
    l_QP = values(loss, replace(batch, s_QP=s_QP))
    if not l_QP.requires_grad:
        raise Broken("the values have no gradient: they do not depend on the scores, or were detached")
    (gradient_QP,) = torch.autograd.grad((weights_of(batch.y_QP).to(l_QP.dtype) * l_QP).sum(), s_QP)
    return l_QP.detach(), gradient_QP


def in_type(batch: Scored, dtype: torch.dtype) -> Scored:
    return Scored(batch.s_QP.to(dtype), batch.y_QP.to(dtype))


def values_and_gradient_of_row(loss: Loss, row: Scored) -> tuple[Tensor, Tensor]:
    """Values, and the gradient of their plain sum."""
    s_1P = row.s_QP.clone().requires_grad_()
    l_1P = values(loss, replace(row, s_QP=s_1P))
    (gradient_1P,) = torch.autograd.grad(l_1P.sum(), s_1P)
    return l_1P.detach(), gradient_1P
