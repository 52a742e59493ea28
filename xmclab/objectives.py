"""What is minimised: weighted loss terms, each under a reduction, in one direction or both, as one scalar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from xmclab.api import Loss, Reduction
from xmclab.errors import ConfigError, Problem
from xmclab.expr import TermSpec, parse_expression
from xmclab.parts import make_part
from xmclab.plugins import default_registry
from xmclab.reductions.ova import Ova

Direction = Literal["q2l", "l2q", "cells"]
GetPart = Callable[[str, str], type]  # (kind, name) to the class of a part


@dataclass(frozen=True)
class Term:
    """A loss under a reduction, with its weight in the objective."""

    name: str
    weight: float
    loss: Loss
    reduction: Reduction


@dataclass(frozen=True)
class TermValue:
    """What one term came to in one direction; `cells` is a binary term, which is the same in both."""

    term: str
    direction: Direction
    value: Tensor  # scalar, the mean of the reduction
    weighted: Tensor  # scalar, what it adds to the objective


@dataclass(frozen=True)
class Objective:
    """Scores and positives to a scalar: the weighted sum of the terms.

    A multi-class term is `q2l_share` of its value with queries as anchors, plus the rest with labels as anchors (the
    same loss on the transposed scores and positives). A binary term is a sum over cells, which has no
    direction; under a multi-class reduction it is the mean over the cells of that reduction's candidates.
    """

    terms: Sequence[Term]
    temperature: float | None = None  # divides the scores of the terms whose loss sets none
    q2l_share: float = 1.0  # 1: query to label only; 0.5: symmetric

    @property
    def needs_all(self) -> bool:
        """Whether the candidates must be all labels because a term's reduction needs them; all terms see them then."""
        return any(term.reduction.needs == "all" for term in self.terms)

    def __call__(
        self,
        scores_QP: Tensor,
        positives_QP: Tensor,
        *,
        ignore_QP: Tensor | None = None,
        label_weight_P: Tensor | None = None,
    ) -> Tensor:
        """The value to minimise, a scalar in float32 (float64 for float64 scores).

        Args:
            scores_QP: inner products, of any float type.
            positives_QP: bool, or real targets: 0 for a negative, > 0 for a positive.
            ignore_QP: bool, pairs that are neither positive nor negative: they are absent.
            label_weight_P: weights of the labels' pairs (such as inverse propensities).
        """
        parts = self.parts(scores_QP, positives_QP, ignore_QP=ignore_QP, label_weight_P=label_weight_P)
        return torch.stack([part.weighted for part in parts]).sum()

    def parts(
        self,
        scores_QP: Tensor,
        positives_QP: Tensor,
        *,
        ignore_QP: Tensor | None = None,
        label_weight_P: Tensor | None = None,
    ) -> list[TermValue]:
        """The value of every term in every direction, of which the objective is the sum; arguments as for a call."""
        cells = _Cells.read(scores_QP, positives_QP, ignore_QP, label_weight_P)
        return [value for term in self.terms for value in self._term(term, cells)]

    def _term(self, term: Term, cells: _Cells) -> Iterator[TermValue]:
        cells = cells.divided(term.loss.temperature or self.temperature or 1.0)
        if term.loss.kind == "binary":
            value = _binary(term, cells)
            yield TermValue(term.name, "cells", value, term.weight * value)
            return
        directions: list[tuple[Direction, float, _Cells]] = [
            ("q2l", self.q2l_share, cells),
            ("l2q", 1 - self.q2l_share, cells.transposed()),
        ]
        for direction, share, anchored in directions:
            if share > 0:
                value = _multiclass(term, anchored)
                yield TermValue(term.name, direction, value, term.weight * share * value)


@dataclass(frozen=True)
class _Cells:
    """Anchors against candidates. Targets are 0 where a pair is ignored; `label_weight` broadcasts over the cells."""

    s_QP: Tensor
    y_QP: Tensor
    ignore_QP: Tensor | None
    label_weight: Tensor | None

    @staticmethod
    def read(s_QP: Tensor, y_QP: Tensor, ignore_QP: Tensor | None, label_weight_P: Tensor | None) -> _Cells:
        _check_shapes(s_QP, y_QP, ignore_QP, label_weight_P)
        s_QP = s_QP if s_QP.dtype == torch.float64 else s_QP.float()
        y_QP = y_QP.to(s_QP.dtype)
        if ignore_QP is not None:
            y_QP = y_QP.masked_fill(ignore_QP, 0)
        return _Cells(s_QP, y_QP, ignore_QP, None if label_weight_P is None else label_weight_P.to(s_QP.dtype)[None, :])

    def divided(self, temperature: float) -> _Cells:
        return _Cells(self.s_QP / temperature, self.y_QP, self.ignore_QP, self.label_weight)

    def transposed(self) -> _Cells:
        ignore_PQ = None if self.ignore_QP is None else self.ignore_QP.T
        return _Cells(self.s_QP.T, self.y_QP.T, ignore_PQ, None if self.label_weight is None else self.label_weight.T)


def _check_shapes(s_QP: Tensor, y_QP: Tensor, ignore_QP: Tensor | None, label_weight_P: Tensor | None) -> None:
    if s_QP.ndim != 2 or not s_QP.is_floating_point():
        raise ValueError(f"scores are a float matrix [queries, labels], not {s_QP.dtype} {tuple(s_QP.shape)}")
    for name, mask in (("positives", y_QP), ("ignore", ignore_QP)):
        if mask is not None and mask.shape != s_QP.shape:
            raise ValueError(f"{name} {tuple(mask.shape)} and scores {tuple(s_QP.shape)} differ in shape")
    if label_weight_P is not None and label_weight_P.shape != s_QP.shape[1:]:
        raise ValueError(f"label weights {tuple(label_weight_P.shape)} are not one per label of {tuple(s_QP.shape)}")


def _multiclass(term: Term, cells: _Cells) -> Tensor:
    w_QP = term.reduction.weights(cells.y_QP)
    s_QP = cells.s_QP if cells.ignore_QP is None else cells.s_QP.masked_fill(cells.ignore_QP, -math.inf)
    l_QP = term.loss.terms(s_QP, term.reduction.targets(cells.y_QP))
    return _weighted_mean(l_QP, w_QP, term.reduction, cells)


def _binary(term: Term, cells: _Cells) -> Tensor:
    reduction = term.reduction if term.reduction.accepts == "binary" else Ova()
    w_QP = reduction.weights(cells.y_QP)
    s_QP = cells.s_QP
    if cells.ignore_QP is not None:
        w_QP = w_QP.masked_fill(cells.ignore_QP, 0)
        s_QP = s_QP.masked_fill(cells.ignore_QP, 0)  # a finite score keeps NaN out of the gradient
    l_QP = term.loss.terms(s_QP, reduction.targets(cells.y_QP))
    return _weighted_mean(l_QP, w_QP, reduction, cells)


def _weighted_mean(l_QP: Tensor, w_QP: Tensor, reduction: Reduction, cells: _Cells) -> Tensor:
    """Pairs without a weight give exactly 0, whatever their loss is (0 * inf is not 0)."""
    normaliser = reduction.normaliser(w_QP)
    if cells.label_weight is not None:
        w_QP = w_QP * cells.label_weight
    return (w_QP * l_QP.masked_fill(w_QP == 0, 0)).sum() / normaliser


def objective(
    expression: str,
    reduction: str = "psl",
    temperature: float | None = None,
    *,
    symmetric: bool = False,
    q2l_share: float | None = None,
) -> Objective:
    """An objective for any training loop, from the names of its parts.

    >>> import torch
    >>> scores, positives = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[True, False, False]])
    >>> round(float(objective("0.7*ds+0.3*bce", temperature=0.5)(scores, positives)), 4)
    0.3839

    Args:
        expression: `ds`, `0.7*ds+0.3*bce`, `supcon(temperature=0.05)+0.1*ova_n(bce)`.
        reduction: of the terms that name none.
        temperature: divides the scores of the terms that set none.
        symmetric: the mean of query to label and label to query, in place of query to label only.
        q2l_share: the weight of query to label, when it is neither all nor half.
    """
    if symmetric and q2l_share is not None:
        raise ConfigError(Problem("q2l_share", "given together with symmetric=True", "symmetric is q2l_share=0.5"))
    share = 0.5 if symmetric else 1.0 if q2l_share is None else q2l_share
    return build_objective(parse_expression(expression), reduction, temperature, share, default_registry().get)


def build_objective(
    terms: Sequence[TermSpec],
    reduction: str,
    temperature: float | None,
    q2l_share: float,
    get: GetPart,
    reduction_options: Mapping[str, Any] | None = None,
    where: str = "",
) -> Objective:
    """The objective of parsed terms.

    Args:
        reduction: of the terms that name none, made with `reduction_options`.
        get: finds the class of a part by its kind and name.
        where: the key of the expression (`loss.clf`), for the messages.

    Raises:
        ConfigError: with all problems.
    """
    built, problems = _build_terms(terms, reduction, get, reduction_options or {}, where)
    if temperature is not None and not 0 < temperature < math.inf:
        problems.append(Problem("temperature", f"is {temperature}", "a number above 0"))
    if not 0 <= q2l_share <= 1:
        problems.append(Problem("q2l_share", f"is {q2l_share}", "a number from 0 to 1"))
    if problems:
        raise ConfigError(*problems)
    return Objective(built, temperature, q2l_share)


def check_terms(
    terms: Sequence[TermSpec],
    reduction: str,
    get: GetPart,
    reduction_options: Mapping[str, Any] | None = None,
    where: str = "",
) -> list[Problem]:
    """What is wrong with the terms: unknown names and options, bad values, a loss that its reduction does not take."""
    return _build_terms(terms, reduction, get, reduction_options or {}, where)[1]


def _build_terms(
    specs: Sequence[TermSpec], reduction: str, get: GetPart, reduction_options: Mapping[str, Any], where: str
) -> tuple[list[Term], list[Problem]]:
    terms: list[Term] = []
    problems: list[Problem] = []
    for spec in specs:
        key = f"{where}.{spec.name}" if where else spec.name
        loss: Loss | None = None
        reduced: Reduction | None = None
        try:
            loss = make_part(_find(get, "loss", spec.name, spec, where), spec.options, key)
        except ConfigError as error:
            problems += error.problems
        try:
            reduced = _make_reduction(spec, reduction, reduction_options, get, where)
        except ConfigError as error:
            problems += error.problems
        if not 0 <= spec.weight < math.inf:
            problems.append(Problem(f"{key}.weight", f"is {spec.weight}", "a weight is a number of at least 0"))
        if loss is None or reduced is None:
            continue
        if loss.kind == "multiclass" and reduced.accepts == "binary":
            problems.append(_wrong_kind(spec, spec.reduction or reduction, where))
        terms.append(Term(spec.name, spec.weight, loss, reduced))
    return terms, list(dict.fromkeys(problems))


def _make_reduction(
    spec: TermSpec, default: str, default_options: Mapping[str, Any], get: GetPart, where: str
) -> Reduction:
    if spec.reduction is None:
        return make_part(get("reduction", default), default_options, "reduction")
    return make_part(_find(get, "reduction", spec.reduction, spec, where), spec.reduction_options, spec.reduction)


def _find(get: GetPart, kind: str, name: str, spec: TermSpec, where: str) -> type:
    """The class of a part that an expression names; if there is none, the message says where it is named."""
    try:
        return get(kind, name)
    except ConfigError as error:
        found = [Problem(where, f"column {spec.column}: {problem.message}", problem.hint) for problem in error.problems]
        raise ConfigError(*found) from None


def _wrong_kind(spec: TermSpec, reduction: str, where: str) -> Problem:
    reason = (
        f"{reduction!r} reduces binary losses (each label by itself), and {spec.name!r} is "
        "a multi-class loss (a positive against the other candidates)"
    )
    return Problem(where, f"column {spec.column}: {reason}", "take a reduction such as psl, or a loss such as bce")
