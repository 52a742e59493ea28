"""The laws of a reduction. A random reduction is checked on average over many equal rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from xmclab.api import BinaryLoss, Loss, MultiClassLoss, Reduction
from xmclab.errors import ConfigError
from xmclab.host import build_objective
from xmclab.objectives import Objective, Term, divisor, parse_expression
from xmclab_kit.core import Broken, Subject, check_close, check_finite, described, identical, named, numbers, seed
from xmclab_kit.structure import OPTIONS, structural_laws

SHAPE, REPEATABLE = "shape", "repeatable"
SOUND = (SHAPE, REPEATABLE)
DRAWS = 2000  # rows that a random reduction is averaged over
DRAWN_NEAR = 0.08  # tolerance between such averages: over 5 standard deviations of a draw of 0 or 1

LAWS = structural_laws()


@dataclass(frozen=True)
class Targets:
    """Targets of a small batch, in float64."""

    y_QP: Tensor

    def __str__(self) -> str:
        return named(y_QP=self.y_QP)


@st.composite
def targets(draw: st.DrawFn, most_rows: int = 3, most_columns: int = 4) -> Targets:
    """0 for a negative; a row may have no positives, or only positives."""
    rows, columns = draw(st.integers(1, most_rows)), draw(st.integers(1, most_columns))
    quarters = np.array([0, 4, 2, 1])[numbers(draw, rows * columns) % 4]
    return Targets(torch.from_numpy(quarters / 4).view(rows, columns))


@dataclass(frozen=True)
class Widened:
    """Targets, and where each of their columns goes in a wider matrix that is 0 elsewhere."""

    y_QP: Tensor
    places: Sequence[int]
    width: int

    def __str__(self) -> str:
        return f"{named(y_QP=self.y_QP)}\nand the same with its columns at {list(self.places)} of {self.width}"

    @property
    def wide_QW(self) -> Tensor:
        wide_QW = self.y_QP.new_zeros(len(self.y_QP), self.width)
        wide_QW[:, self.places] = self.y_QP
        return wide_QW


@st.composite
def widened(draw: st.DrawFn) -> Widened:
    y_QP = draw(targets()).y_QP
    width = y_QP.shape[1] + draw(st.integers(0, 2))
    return Widened(y_QP, draw(st.permutations(range(width)))[: y_QP.shape[1]], width)


@dataclass(frozen=True)
class Drawn:
    """Targets, and the pairs that their query drew, which need not be positives."""

    y_QP: Tensor
    drawn_QP: Tensor

    def __str__(self) -> str:
        return named(y_QP=self.y_QP, drawn_QP=self.drawn_QP)


@st.composite
def drawn_pairs(draw: st.DrawFn) -> Drawn:
    y_QP = draw(targets()).y_QP
    return Drawn(y_QP, torch.from_numpy(numbers(draw, y_QP.numel()) % 2 == 1).view_as(y_QP))


def weights(reduction: Reduction, y_QP: Tensor) -> Tensor:
    """w_QP from a copy, in case a reduction writes into its input."""
    return reduction.weights(y_QP.clone())


def is_random(subject: Subject) -> bool:
    """Whether weights depend on the generator."""
    y_QP = torch.ones(40, 4, dtype=torch.float64)
    return not identical(weights(subject.part, y_QP), weights(subject.part, y_QP))


def expected_weights(subject: Subject, y_QP: Tensor) -> Tensor:
    """The weights, or their averages over many rows where they are drawn."""
    if not subject.once(is_random):
        return weights(subject.part, y_QP)
    many = weights(subject.part, y_QP.repeat_interleave(DRAWS, dim=0))
    return many.view(len(y_QP), DRAWS, -1).mean(dim=1)


def check_weights(subject: Subject, seen: Tensor, expected: Tensor, what: str) -> None:
    atol = DRAWN_NEAR if subject.once(is_random) else 1e-9
    check_close(seen, expected, what, rtol=1e-7, atol=atol)


@LAWS.law(
    says="`needs` is 'pool' or 'all', `accepts` is 'multiclass' or 'binary', `among` is 'positives' or 'drawn'",
    fix="set the class variables `needs`, `accepts` and `among` to one of their values, or omit them",
    needs=[OPTIONS],
)
def family(subject: Subject) -> None:
    words = {"needs": ("pool", "all"), "accepts": ("multiclass", "binary"), "among": ("positives", "drawn")}
    for name, known in words.items():
        if getattr(subject.cls, name) not in known:
            raise Broken(f"{name} is {getattr(subject.cls, name)!r}")


def divided_by(subject: Subject, w_QP: Tensor) -> Tensor:
    """The divisor of the weighted sum: its normaliser, or the number of anchors."""
    return divisor(Term(subject.name, 1.0, _Softmax(), subject.part), w_QP)


@LAWS.law(
    says="weights() and targets() return the shape and type of y_QP, normaliser() a single number above 0",
    fix="a weight for every cell, 0 where it does not count; clamp(min=1) a count that may be 0",
    examples=targets(),
    needs=["family"],
)
def shape(subject: Subject, example: Targets) -> None:
    for dtype in (torch.float64, torch.float32):
        y_QP = example.y_QP.to(dtype)
        for name in ("weights", "targets"):
            result = getattr(subject.part, name)(y_QP.clone())
            if not isinstance(result, Tensor) or result.shape != y_QP.shape or result.dtype != dtype:
                raise Broken(f"{name}() returned {described(result)} for {described(y_QP)}")
        found = divided_by(subject, weights(subject.part, y_QP))
        if not isinstance(found, Tensor) or found.ndim != 0:
            raise Broken(f"normaliser() returned {described(found)}, not a tensor of one number")
        if not 0 < float(found) < torch.inf:
            raise Broken(f"normaliser() returned {float(found)}")


@LAWS.law(
    says="the same targets and the same torch seed give the same weights",
    fix="draw from torch's global generator (torch.rand, exponential_), which the trainer seeds, and keep no state",
    examples=targets(most_columns=6),
    needs=[SHAPE],
)
def repeatable(subject: Subject, example: Targets) -> None:
    y_QP = example.y_QP.repeat(8, 1)
    seed(3)
    first = weights(subject.part, y_QP)
    weights(subject.part, y_QP)
    seed(3)
    again = weights(subject.part, y_QP)
    if not identical(first, again):
        row = int((first != again).any(dim=1).nonzero()[0])
        raise Broken(f"for 8 copies of the rows, in row {row}: " + named(first=first[row], again=again[row]))


@LAWS.law(
    says="targets are not modified",
    fix="use operations without a trailing underscore, or clone() first",
    examples=targets(),
    needs=[SHAPE],
)
def unchanged(subject: Subject, example: Targets) -> None:
    for name in ("weights", "targets"):
        after = example.y_QP.clone()
        getattr(subject.part, name)(after)
        if not torch.equal(after, example.y_QP):
            raise Broken(f"{name}() wrote into y_QP: " + named(afterwards=after))


@LAWS.law(
    says="weights are finite and at least 0; a multi-class reduction weighs positives only",
    fix="multiply by (y_QP > 0), and clamp what you divide by: a row may have no positives",
    examples=targets(),
    needs=SOUND,
)
def allowed(subject: Subject, example: Targets) -> None:
    w_QP = weights(subject.part, example.y_QP)
    check_finite(w_QP, "the weight")
    _refuse(w_QP, w_QP < 0, "the weight")
    if subject.part.accepts == "multiclass":
        _refuse(w_QP, (example.y_QP <= 0) & (w_QP != 0), "the weight of a negative")


def _refuse(values: Tensor, wrong: Tensor, what: str) -> None:
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        raise Broken(f"{what} at {at} is {float(values[tuple(at)]):.6g}")


@LAWS.law(
    says="the loss sees 0 for a negative and a finite number above 0 for a positive",
    fix="let targets() scale positives and leave 0 alone",
    examples=targets(),
    needs=SOUND,
)
def zero_stays(subject: Subject, example: Targets) -> None:
    t_QP = subject.part.targets(example.y_QP.clone())
    check_finite(t_QP, "the target")
    _refuse(t_QP, (example.y_QP == 0) & (t_QP != 0), "the target of a negative")
    _refuse(t_QP, (example.y_QP > 0) & (t_QP <= 0), "the target of a positive")


@LAWS.law(
    says="the weights of an anchor add up to what `adds_up_to` declares, before the normaliser divides them",
    fix="divide by the sum over the row's positives (one), keep y_QP (targets), weigh all cells 1 (cells), or declare"
    " 'anything'",
    examples=targets(),
    needs=[*SOUND, "allowed"],
)
def sums(subject: Subject, example: Targets) -> None:
    y_QP = example.y_QP
    declared = {
        "one": (y_QP > 0).any(dim=1).double(),
        "targets": y_QP.sum(dim=1),
        "cells": torch.full((len(y_QP),), float(y_QP.shape[1]), dtype=torch.float64),
    }
    wanted = subject.part.adds_up_to
    if wanted == "anything":
        return
    if wanted not in declared:
        raise Broken(f"adds_up_to is {wanted!r}, which is not one of {', '.join(declared)}, anything")
    check_close(weights(subject.part, y_QP).sum(dim=1), declared[wanted], f"sum of the row (declared: {wanted})")


@LAWS.law(
    says="the weights of an anchor depend only on its own row",
    fix="sum over dim=1 with keepdim=True, never over all of y_QP",
    examples=targets(),
    needs=SOUND,
)
def alone(subject: Subject, example: Targets) -> None:
    together = expected_weights(subject, example.y_QP)
    for row in range(len(together)):
        by_itself = expected_weights(subject, example.y_QP[row : row + 1])[0]
        check_weights(subject, by_itself, together[row], f"weight of row {row} by itself")


@LAWS.law(
    says="zero columns may be dropped and columns moved: weights and targets move along, the normaliser stays",
    fix="refer to cells by y_QP > 0, never by their place or by the number of columns",
    examples=widened(),
    needs=[*SOUND, "alone"],
)
def columns(subject: Subject, example: Widened) -> None:
    narrow_QP = expected_weights(subject, example.y_QP)
    wide_QW = expected_weights(subject, example.wide_QW)
    places = list(example.places)
    check_weights(subject, wide_QW[:, places], narrow_QP, "weight in the wider matrix")
    seen, expected = (subject.part.targets(y.clone()) for y in (example.wide_QW, example.y_QP))
    check_close(seen[:, places], expected, "target in the wider matrix", rtol=1e-7)
    if subject.cls.accepts == "multiclass":
        seen, expected = (divided_by(subject, w.clone()) for w in (wide_QW, narrow_QP))
        check_close(seen, expected, "normaliser of the wider matrix", rtol=1e-7)


@dataclass
class _Softmax(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.logsumexp(dim=1, keepdim=True) - s_QP


@dataclass
class _Logistic(BinaryLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return torch.nn.functional.softplus(s_QP) - y_QP * s_QP


@dataclass
class _Score(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP


@dataclass
class _CellScore(BinaryLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP


@LAWS.law(
    says="with `among = 'drawn'`, only pairs that were drawn get a weight, in both directions",
    fix="weigh cells with y_QP > 0 only, which a reduction of binary losses cannot: omit `among` there",
    examples=drawn_pairs(),
    needs=[*SOUND, "allowed"],
)
def drawn(subject: Subject, example: Drawn) -> None:
    if subject.cls.among != "drawn":
        return
    loss = _CellScore() if subject.cls.accepts == "binary" else _Score()
    objective = Objective([Term(subject.name, 1.0, loss, subject.part)], q2l_share=0.5)
    s_QP = torch.zeros_like(example.y_QP, requires_grad=True)
    value = objective(s_QP, example.y_QP, drawn_QP=example.drawn_QP)
    (w_QP,) = torch.autograd.grad(value, s_QP)
    _refuse(w_QP, ~example.drawn_QP & (w_QP != 0), "the weight of a pair that was not drawn")


@LAWS.law(
    says="cell_weight(), where given, is the weight of every cell divided by the normaliser",
    fix="return 1 / cells for a mean over the cells and 1 for a sum; delete it if cells weigh differently",
    examples=targets(),
    needs=["allowed"],
)
def cell_weight(subject: Subject, example: Targets) -> None:
    if subject.part.weighs_cells_alike:
        w_QP = weights(subject.part, example.y_QP)
        alike_QP = torch.full_like(w_QP, subject.part.cell_weight(w_QP.numel()))
        check_close(alike_QP, w_QP / divided_by(subject, w_QP), "cell_weight() in every cell", rtol=1e-7, atol=1e-9)


@LAWS.law(
    says="it can be applied to a loss in an expression, and value and gradient are finite",
    fix="name it with letters, digits and underscores; make sure that normaliser() accepts its weights",
    examples=targets(),
    needs=[*SOUND, "allowed"],
)
def expression(subject: Subject, example: Targets) -> None:
    try:
        (term,) = parse_expression(f"{subject.name}(reference)")
    except ConfigError as error:
        raise Broken(f"'{subject.name}(...)' cannot be read: {error}") from error
    loss: type[Loss] = _Logistic if subject.part.accepts == "binary" else _Softmax
    parts = {("loss", "reference"): loss, ("reduction", subject.name): subject.cls}
    spec = replace(term, reduction_options=dict(subject.options))
    objective = build_objective([spec], subject.name, 0.5, 0.5, lambda kind, name: parts[kind, name])
    s_QP = torch.randn(example.y_QP.shape, dtype=torch.float64, requires_grad=True)
    value = objective(s_QP, example.y_QP)
    check_finite(value, "the value")
    check_finite(torch.autograd.grad(value, s_QP)[0], "the gradient")
