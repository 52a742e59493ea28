"""The objective: weighted loss terms, each under a reduction, in one direction or both, as one scalar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor

from xmclab.api import Loss, Reduction
from xmclab.objectives.autograd import value_by_autograd
from xmclab.objectives.engine import in_closed_form
from xmclab.objectives.products import summed_in
from xmclab.objectives.scores import Evaluation, Matrix
from xmclab.objectives.truth import Truth, check_labels


@dataclass(frozen=True)
class Term:
    """A loss under a reduction, with its weight in the objective."""

    name: str
    weight: float
    loss: Loss
    reduction: Reduction

    @cached_property
    def binary(self) -> bool:
        """Whether it is a sum over cells, which has no direction."""
        return self.loss.kind == "binary"

    @cached_property
    def over_cells(self) -> bool:
        """Whether its reduction is made for cells. Under any other, a binary loss is the mean over all cells."""
        return self.reduction.accepts == "binary"

    @cached_property
    def weighs_cells_alike(self) -> bool:
        """Whether all cells of a binary loss have the same weight."""
        return not self.over_cells or self.reduction.weighs_cells_alike

    @cached_property
    def has_closed_form(self) -> bool:
        """Whether it needs no matrix of losses."""
        return self.loss.has_closed_form and (not self.binary or self.weighs_cells_alike)

    def is_closed(self, weighted: bool) -> bool:
        """The same if labels may have weights: a closed form of a binary loss takes cells of equal weight only."""
        return self.has_closed_form and not (weighted and self.binary)

    @cached_property
    def has_softplus_negatives(self) -> bool:
        """Whether its negatives cost log(1 + exp s)."""
        return bool(getattr(self.loss, "has_softplus_negatives", False))

    @cached_property
    def changes_targets(self) -> bool:
        """Whether its reduction gives the loss targets of its own."""
        return (self.over_cells or not self.binary) and self.reduction.defines("targets")

    @cached_property
    def has_normaliser(self) -> bool:
        """Whether its reduction divides by anything but the number of anchors."""
        return self.reduction.defines("normaliser")

    @cached_property
    def has_closed_pairs(self) -> bool:
        """Whether its binary loss sums pairs without autograd."""
        return self.loss.defines("of_pairs")


@dataclass(frozen=True)
class Direction:
    """A term with queries as anchors (`q2l`), with labels as anchors (`l2q`), or over cells, which have none."""

    term: Term
    anchors: Literal["q2l", "l2q", "cells"]
    factor: float  # in the objective
    temperature: float

    @cached_property
    def name(self) -> str:
        return f"{self.term.name}/{self.anchors}"


@dataclass(frozen=True)
class Objective:
    """Scores and positives to a scalar: the weighted sum of the terms.

    A multi-class term is `q2l_share` times its value with queries as anchors, plus the rest with labels as anchors
    (the same loss on the transposed scores and positives). A binary term is a sum over cells, which has no
    direction; under a multi-class reduction it is the mean over the cells of that reduction's candidates.
    """

    terms: Sequence[Term]
    temperature: float | None = None  # divides the scores of terms whose loss sets none
    q2l_share: float = 1.0  # 1: query to label only; 0.5: symmetric
    share: float = 1.0  # weight of its head in the total of a model; not part of the value

    @cached_property
    def needs_all(self) -> bool:
        """Whether some reduction needs all labels as candidates; then all terms get them."""
        return any(term.reduction.needs == "all" for term in self.terms)

    @cached_property
    def needs_propensities(self) -> bool:
        """Whether some loss needs inverse propensities of the labels."""
        return any(term.loss.targets == "inverse_propensity" for term in self.terms)

    @cached_property
    def has_closed_form(self) -> bool:
        """Whether all terms have one, so that labels can be handled in blocks, without a score matrix."""
        return all(term.has_closed_form for term in self.terms)

    @cached_property
    def has_weighted_closed_form(self) -> bool:
        """The same if labels have weights."""
        return all(term.is_closed(weighted=True) for term in self.terms)

    @cached_property
    def directions(self) -> list[Direction]:
        """All terms in all directions."""
        found = []
        for term in self.terms:
            temperature = term.loss.temperature or self.temperature or 1.0
            if term.binary:
                found.append(Direction(term, "cells", term.weight, temperature))
                continue
            if self.q2l_share > 0:
                found.append(Direction(term, "q2l", term.weight * self.q2l_share, temperature))
            if self.q2l_share < 1:
                found.append(Direction(term, "l2q", term.weight * (1 - self.q2l_share), temperature))
        return found

    def __call__(
        self,
        scores_QP: Tensor,
        positives_QP: Tensor,
        *,
        ignore_QP: Tensor | None = None,
        drawn_QP: Tensor | None = None,
        label_weight_P: Tensor | None = None,
        inverse_propensity_P: Tensor | None = None,
    ) -> Tensor:
        """The value to minimise, a scalar in float32 (float64 for float64 scores).

        Args:
            scores_QP: inner products, of any float type.
            positives_QP: bool, or real targets: 0 for a negative, > 0 for a positive.
            ignore_QP: bool, pairs that are neither positive nor negative: they are absent.
            drawn_QP: bool, the positives that each query drew, for reductions among these (`pol`); default: all.
            label_weight_P: weight of each label's pairs (such as its inverse propensity).
            inverse_propensity_P: per label, for losses that correct for missing labels (`pw_bce`, `unbiased_bce`).
        """
        _check_scores(scores_QP)
        check_labels("inverse propensities", inverse_propensity_P, scores_QP.shape)
        for name, mask in (("positives", positives_QP), ("ignore", ignore_QP), ("drawn", drawn_QP)):
            if mask is not None and mask.shape != scores_QP.shape:
                raise ValueError(f"{name} {tuple(mask.shape)} and scores {tuple(scores_QP.shape)} differ in shape")
        truth = Truth.of_matrix(positives_QP, ignore_QP, drawn_QP).with_propensities(inverse_propensity_P)
        return self.evaluate(scores_QP, truth, label_weight_P).total

    def evaluate(
        self, scores_QP: Tensor, truth: Truth, label_weight_P: Tensor | None = None, bound: float = math.inf
    ) -> Evaluation:
        """The value and its parts, for positives given as lists.

        Terms whose loss has a closed form share one gradient matrix; the others go through autograd.

        Args:
            bound: upper bound of the absolute scores, if known; bounded scores need fewer exponentials.
        """
        _check_scores(scores_QP)
        check_labels("label weights", label_weight_P, scores_QP.shape)
        s_QP = scores_QP.to(summed_in(scores_QP.dtype))
        if not s_QP.numel():
            return Evaluation(s_QP.sum(), {})
        weighted, total = label_weight_P is not None, s_QP.new_zeros(())
        values: dict[str, Tensor] = {}
        if closed := [direction for direction in self.directions if direction.term.is_closed(weighted)]:
            found = in_closed_form(Matrix(s_QP, bound), truth, closed, label_weight_P)
            total, values = found.total, dict(found.values)
        for direction in self.directions:
            if not direction.term.is_closed(weighted):
                value = value_by_autograd(direction, s_QP, truth, label_weight_P)
                total = total + direction.factor * value
                values[direction.name] = value.detach()
        return Evaluation(total, {direction.name: values[direction.name] for direction in self.directions})


def _check_scores(scores_QP: Tensor) -> None:
    if scores_QP.ndim != 2 or not scores_QP.is_floating_point():
        raise ValueError(f"scores must be a float matrix, not {scores_QP.dtype} of shape {tuple(scores_QP.shape)}")
