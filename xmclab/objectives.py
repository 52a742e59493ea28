"""What is minimised: weighted loss terms, each under a reduction, in one direction or both, as one scalar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

    def weighed(self, w_QP: Tensor) -> Tensor:
        return w_QP if self.label_weight is None else w_QP * self.label_weight


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
    return _total(l_QP, cells.weighed(w_QP)) / term.reduction.normaliser(w_QP)


def _binary(term: Term, cells: _Cells) -> Tensor:
    reduction = term.reduction if term.reduction.accepts == "binary" else Ova()
    w_QP = reduction.weights(cells.y_QP)
    if cells.ignore_QP is not None:
        w_QP = w_QP.masked_fill(cells.ignore_QP, 0)
    weighed_QP = cells.weighed(w_QP)
    s_QP = cells.s_QP.masked_fill(weighed_QP == 0, 0)  # stops the gradient, which 0 * inf would make NaN
    l_QP = term.loss.terms(s_QP, reduction.targets(cells.y_QP))
    return _total(l_QP, weighed_QP) / reduction.normaliser(w_QP)


def _total(l_QP: Tensor, w_QP: Tensor) -> Tensor:
    """The weighted sum, in which pairs without a weight are 0 even if their loss is not finite."""
    return (w_QP * l_QP.masked_fill(w_QP == 0, 0)).sum()


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
    builder = _Builder(get, reduction, reduction_options or {}, where)
    built, problems = builder.build(terms), builder.problems
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
    builder = _Builder(get, reduction, reduction_options or {}, where)
    builder.build(terms)
    return builder.problems


@dataclass
class _Builder:
    """Makes terms from names, and notes everything that is wrong on the way."""

    get: GetPart
    reduction: str  # of the terms that name none
    reduction_options: Mapping[str, Any]
    where: str  # the key of the expression
    problems: list[Problem] = field(default_factory=list)

    def build(self, specs: Sequence[TermSpec]) -> list[Term]:
        terms = [term for spec in specs if (term := self._term(spec)) is not None]
        self.problems = list(dict.fromkeys(self.problems))  # a bad default reduction is met at every term
        return terms

    def _term(self, spec: TermSpec) -> Term | None:
        loss: Loss | None = self._part("loss", spec.name, spec.options, spec)
        reduction: Reduction | None
        if spec.reduction is None:
            reduction = self._part("reduction", self.reduction, self.reduction_options, None)
        else:
            reduction = self._part("reduction", spec.reduction, spec.reduction_options, spec)
        if not 0 <= spec.weight < math.inf:
            self._note(f"{self._key(spec.name)}.weight", f"is {spec.weight}", "a weight is a number of at least 0")
        if loss is None or reduction is None:
            return None
        if loss.kind == "multiclass" and reduction.accepts == "binary":
            reason = (
                f"column {spec.column}: {(spec.reduction or self.reduction)!r} reduces binary losses (each label by "
                f"itself), and {spec.name!r} is a multi-class loss (a positive against the other candidates)"
            )
            self._note(self.where, reason, "take a reduction such as psl, or a loss such as bce")
        return Term(spec.name, spec.weight, loss, reduction)

    def _part(self, kind: str, name: str, options: Mapping[str, Any], spec: TermSpec | None) -> Any:
        """A part named in a term of the expression, or beside the expression; None if there is no such part."""
        try:
            cls = self.get(kind, name)
        except ConfigError as error:
            for problem in error.problems:
                message = f"column {spec.column}: {problem.message}" if spec else problem.message
                self._note(self.where if spec else kind, message, problem.hint)
            return None
        try:
            return make_part(cls, options, self._key(name) if spec else kind)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _key(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _note(self, where: str, message: str, hint: str) -> None:
        self.problems.append(Problem(where, message, hint))
