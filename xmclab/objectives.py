"""What is minimised: weighted loss terms, each under a reduction, in one direction or both, as one scalar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xmclab.api import Loss, Pairs, Reduction
from xmclab.errors import ConfigError, Problem
from xmclab.expr import TermSpec, parse_expression
from xmclab.parts import make_part
from xmclab.plugins import default_registry
from xmclab.reductions.ova import Ova
from xmclab.truth import Truth

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
class Evaluation:
    """The value of an objective."""

    total: Tensor  # scalar, differentiable
    parts: list[TermValue]  # detached; their weighted values add up to the total


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
        _check_scores(scores_QP)
        for name, mask in (("positives", positives_QP), ("ignore", ignore_QP)):
            if mask is not None and mask.shape != scores_QP.shape:
                raise ValueError(f"{name} {tuple(mask.shape)} and scores {tuple(scores_QP.shape)} differ in shape")
        return self.evaluate(scores_QP, Truth.of_matrix(positives_QP, ignore_QP), label_weight_P).total

    def evaluate(self, scores_QP: Tensor, truth: Truth, label_weight_P: Tensor | None = None) -> Evaluation:
        """The value and its parts, for positives that are known as a list.

        Terms whose loss has a closed form share one gradient matrix; the others go through autograd.
        """
        _check_scores(scores_QP)
        if label_weight_P is not None and label_weight_P.shape != scores_QP.shape[1:]:
            given = tuple(label_weight_P.shape)
            raise ValueError(f"label weights {given} are not one per label of {tuple(scores_QP.shape)}")
        s_QP = scores_QP if scores_QP.dtype == torch.float64 else scores_QP.float()
        if not s_QP.numel():
            return Evaluation(s_QP.sum(), [])
        weight_P = None if label_weight_P is None else label_weight_P.to(s_QP.dtype)
        sums = list(self.sums(truth, weight_P))
        closed = [part for part in sums if part.closed]
        total = s_QP.new_zeros(())
        values: dict[int, Tensor] = {}
        if closed:
            closed_total, *closed_values = _ClosedForm.apply(s_QP, closed)  # type: ignore[no-untyped-call]
            total = total + closed_total
            values |= {id(part): value for part, value in zip(closed, closed_values, strict=True)}
        for part in sums:
            if not part.closed:
                value = part.value(s_QP)
                total = total + part.factor * value
                values[id(part)] = value.detach()
        parts = [TermValue(p.term.name, p.direction, values[id(p)], p.factor * values[id(p)]) for p in sums]
        return Evaluation(total, parts)

    def sums(self, truth: Truth, label_weight_P: Tensor | None, anchors: Truth | None = None) -> Iterator[_Sum]:
        """Every term in every direction; `anchors` is the truth of labels as anchors, if not the transposed one."""
        for term in self.terms:
            temperature = term.loss.temperature or self.temperature or 1.0
            if term.loss.kind == "binary":
                yield _Sum(term, "cells", term.weight, temperature, truth, label_weight_P)
                continue
            if self.q2l_share > 0:
                yield _Sum(term, "q2l", term.weight * self.q2l_share, temperature, truth, label_weight_P)
            if self.q2l_share < 1:
                share = term.weight * (1 - self.q2l_share)
                yield _Sum(term, "l2q", share, temperature, anchors or truth.transposed(), label_weight_P)


@dataclass(frozen=True)
class _Sum:
    """One term in one direction: a weighted sum over pairs, divided by a normaliser."""

    term: Term
    direction: Direction
    factor: float  # in the objective
    temperature: float
    truth: Truth  # in the direction of the sum
    label_weight_P: Tensor | None

    @property
    def reduction(self) -> Reduction:
        binary_alone = self.term.loss.kind == "binary" and self.term.reduction.accepts != "binary"
        return Ova() if binary_alone else self.term.reduction

    @property
    def closed(self) -> bool:
        """Whether the closed form applies: that of a binary loss knows no weights, as `Ova` and its like have none."""
        kind = type(self.reduction)
        weightless = kind.weights is Ova.weights and kind.normaliser is Ova.normaliser and self.label_weight_P is None
        return self.term.loss.has_closed_form and (self.term.loss.kind == "multiclass" or weightless)

    def _anchored(self, s_QP: Tensor) -> Tensor:
        """The scores with anchors as rows."""
        return s_QP.T if self.direction == "l2q" else s_QP

    def value(self, s_QP: Tensor) -> Tensor:
        """By autograd, from the loss of every pair."""
        s_QP = self._anchored(s_QP) / self.temperature
        y_QP = self.truth.matrix(s_QP.dtype)
        w_QP = self.reduction.weights(y_QP)
        if len(self.truth.ignored_row_I):
            w_QP = self.truth.hide_ignored(w_QP.clone(), 0.0)
        normaliser = self.reduction.normaliser(w_QP)
        if self.label_weight_P is not None:
            w_QP = w_QP * self.label_weight_P.unsqueeze(1 if self.direction == "l2q" else 0)
        if self.term.loss.kind == "binary":
            s_QP = s_QP.masked_fill(w_QP == 0, 0)  # a finite score keeps NaN out of the gradient
        else:
            s_QP = self.truth.hide_ignored(s_QP.clone(), -math.inf)
        l_QP = self.term.loss.terms(s_QP, self.reduction.targets(y_QP))
        # Pairs without a weight give exactly 0, whatever their loss is (0 * inf is not 0).
        return (w_QP * l_QP.masked_fill(w_QP == 0, 0)).sum() / normaliser

    def value_and_grad(self, s_QP: Tensor) -> tuple[Tensor, Tensor]:
        """In closed form: the value, and the gradient of `factor * value` with respect to `s_QP`."""
        scaled_QP = self.truth.hide_ignored(self._anchored(s_QP * (1 / self.temperature)), -math.inf)
        y_QM, place_E = self.truth.compact(s_QP.dtype)
        at = self.truth.row_E, place_E
        target_E = self.reduction.targets(y_QM)[at]
        slope = self.factor / self.temperature or 1.0  # a term of weight 0 is still reported
        if self.term.loss.kind == "binary":
            assert isinstance(self.reduction, Ova)
            cells = self.truth.shape[0] * self.truth.shape[1] - len(self.truth.ignored_row_I)
            normaliser = 1 if self.reduction.cells == "sum" else max(cells, 1)
            pairs = Pairs(self.truth.row_E, self.truth.column_E, target_E, torch.ones_like(target_E))
            value, gradient_QP = self.term.loss.value_and_grad(scaled_QP, pairs)
            return value / normaliser, gradient_QP.mul_(self.factor / self.temperature / normaliser)
        w_QM = self.reduction.weights(y_QM)
        weight_E = w_QM[at] * slope / self.reduction.normaliser(w_QM)
        if self.label_weight_P is not None:
            labels_E = self.truth.row_E if self.direction == "l2q" else self.truth.column_E
            weight_E = weight_E * self.label_weight_P[labels_E]
        pairs = Pairs(self.truth.row_E, self.truth.column_E, target_E, weight_E)
        value, gradient_QP = self.term.loss.value_and_grad(scaled_QP, pairs)
        gradient_QP = gradient_QP if self.factor else gradient_QP.zero_()
        return value / slope, self._anchored(gradient_QP)


def _check_scores(scores_QP: Tensor) -> None:
    if scores_QP.ndim != 2 or not scores_QP.is_floating_point():
        raise ValueError(f"scores are a float matrix, not {scores_QP.dtype} of {tuple(scores_QP.shape)}")


class _ClosedForm(torch.autograd.Function):
    """The weighted total of sums in closed form (differentiable) and the value of each (not)."""

    @staticmethod
    def forward(ctx: Any, s_QP: Tensor, sums: Sequence[_Sum]) -> tuple[Tensor, ...]:
        values, total_grad = [], None
        for part in sums:
            value, gradient_QP = part.value_and_grad(s_QP)
            values.append(value)
            total_grad = gradient_QP if total_grad is None else total_grad.add_(gradient_QP)
        ctx.save_for_backward(total_grad)
        ctx.mark_non_differentiable(*values)
        total = torch.stack([part.factor * value for part, value in zip(sums, values, strict=True)]).sum()
        return total, *values

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        (gradient_QP,) = ctx.saved_tensors
        return gradient_QP * upstream[0], None


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
