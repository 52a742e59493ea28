"""The objective: weighted loss terms, each under a reduction, in one direction or both, as one scalar."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xmclab.api import Loss, Pairs, Reduction
from xmclab.errors import PluginError, Problem
from xmclab.kernels.dispatch import fused_for
from xmclab.objectives.engine import ClosedForm, Part
from xmclab.objectives.reductions.ova import Ova
from xmclab.objectives.truth import Truth

Direction = Literal["q2l", "l2q", "cells"]
LABELS_AT_ONCE = 1536  # labels per matrix product


@dataclass(frozen=True)
class Term:
    """A loss under a reduction, with its weight in the objective."""

    name: str
    weight: float
    loss: Loss
    reduction: Reduction

    @property
    def applied(self) -> Reduction:
        """The reduction of its pairs: a binary loss under a multi-class reduction is the mean over all cells."""
        binary_alone = self.loss.kind == "binary" and self.reduction.accepts != "binary"
        return Ova() if binary_alone else self.reduction

    def is_closed(self, label_weights: bool) -> bool:
        """Whether the closed form applies: that of a binary loss takes cells of equal weight only."""
        alike = self.applied.weighs_cells_alike and not label_weights
        return self.loss.has_closed_form and (self.loss.kind == "multiclass" or alike)


@dataclass(frozen=True)
class TermValue:
    """The value of one term in one direction; `cells` for a binary term, which has no direction."""

    term: str
    direction: Direction
    value: Tensor  # scalar, reduced
    weighted: Tensor  # scalar, what it adds to the objective


@dataclass(frozen=True)
class Evaluation:
    """The value of an objective."""

    total: Tensor  # scalar, differentiable
    parts: list[TermValue]  # detached; their weighted values add up to the total


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

    @property
    def needs_all(self) -> bool:
        """Whether some reduction needs all labels as candidates; then all terms get them."""
        return any(term.reduction.needs == "all" for term in self.terms)

    @property
    def needs_propensities(self) -> bool:
        """Whether some loss needs inverse propensities of the labels."""
        return any(term.loss.targets == "inverse_propensity" for term in self.terms)

    def __call__(
        self,
        scores_QP: Tensor,
        positives_QP: Tensor,
        *,
        ignore_QP: Tensor | None = None,
        label_weight_P: Tensor | None = None,
        inverse_propensity_P: Tensor | None = None,
    ) -> Tensor:
        """The value to minimise, a scalar in float32 (float64 for float64 scores).

        Args:
            scores_QP: inner products, of any float type.
            positives_QP: bool, or real targets: 0 for a negative, > 0 for a positive.
            ignore_QP: bool, pairs that are neither positive nor negative: they are absent.
            label_weight_P: weight of each label's pairs (such as its inverse propensity).
            inverse_propensity_P: per label, for losses that correct for missing labels (`pw_bce`, `unbiased_bce`).
        """
        _check_scores(scores_QP)
        _check_labels("inverse propensities", inverse_propensity_P, scores_QP.shape)
        for name, mask in (("positives", positives_QP), ("ignore", ignore_QP)):
            if mask is not None and mask.shape != scores_QP.shape:
                raise ValueError(f"{name} {tuple(mask.shape)} and scores {tuple(scores_QP.shape)} differ in shape")
        truth = Truth.of_matrix(positives_QP, ignore_QP).with_propensities(inverse_propensity_P)
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
        _check_labels("label weights", label_weight_P, scores_QP.shape)
        s_QP = scores_QP if scores_QP.dtype == torch.float64 else scores_QP.float()
        if not s_QP.numel():
            return Evaluation(s_QP.sum(), [])
        if bound == math.inf and s_QP.device.type == "cpu" and not fused_for(s_QP):
            bound = _largest(s_QP.detach())
        sums = self.sums(truth, label_weight_P, s_QP.dtype)
        closed = [part for part in sums if part.closed]
        total = s_QP.new_zeros(())
        values: dict[int, Tensor] = {}
        if closed:
            with _without_autocast(s_QP.device.type):
                closed_total, *closed_values = _OfScores.apply(s_QP, truth, closed, bound)  # type: ignore[no-untyped-call]
            total = total + closed_total
            values |= {id(part): value for part, value in zip(closed, closed_values, strict=True)}
        for part in sums:
            if not part.closed:
                value = part.value(s_QP)
                total = total + part.factor * value
                values[id(part)] = value.detach()
        return _evaluation(total, sums, [values[id(part)] for part in sums])

    def evaluate_vectors(
        self,
        q_QD: Tensor,
        z_PD: Tensor,
        truth: Truth,
        label_weight_P: Tensor | None = None,
        bound: float = math.inf,
    ) -> Evaluation:
        """`evaluate` for the scores `q_QD @ z_PD.T`, in the memory of one score matrix, or of a block if it is large.

        Matrix products use the dtype of autocast; everything else is as in `evaluate`.
        """
        sums: list[TermSum] = []
        if len(q_QD) and len(z_PD):
            _check_labels("label weights", label_weight_P, (len(q_QD), len(z_PD)))
            sums = self.sums(truth, label_weight_P, _reduced_in(q_QD.dtype))
        if not sums or not all(part.closed for part in sums):
            return self.evaluate(q_QD @ z_PD.T, truth, label_weight_P, bound)
        device = q_QD.device.type
        if bound == math.inf and device == "cpu" and not fused_for(q_QD, len(q_QD) * len(z_PD)):
            bound = _largest(q_QD.detach().norm(dim=1)) * _largest(z_PD.detach().norm(dim=1))
        low = (q_QD[:1].detach() @ z_PD[:1].detach().T).dtype  # the dtype of autocast, if it is on
        with _without_autocast(device):
            total, *values = _OfVectors.apply(q_QD.to(low), z_PD.to(low), truth, sums, bound)  # type: ignore[no-untyped-call]
        return _evaluation(total, sums, values)

    def sums(self, truth: Truth, label_weight_P: Tensor | None, dtype: torch.dtype) -> list[TermSum]:
        """All terms in all directions."""
        weight_P = None if label_weight_P is None else label_weight_P.to(dtype)
        sums = []
        for term in self.terms:
            if term.loss.targets == "inverse_propensity" and truth.inverse_propensity_E is None:
                raise ValueError(f"loss {term.name!r} needs label propensities: pass inverse_propensity_P")
            temperature = term.loss.temperature or self.temperature or 1.0
            if term.loss.kind == "binary":
                sums.append(TermSum(term, "cells", term.weight, temperature, truth, weight_P))
                continue
            if self.q2l_share > 0:
                sums.append(TermSum(term, "q2l", term.weight * self.q2l_share, temperature, truth, weight_P))
            if self.q2l_share < 1:
                share = term.weight * (1 - self.q2l_share)
                sums.append(TermSum(term, "l2q", share, temperature, truth.transposed, weight_P))
        return sums


@dataclass(frozen=True)
class TermSum:
    """One term in one direction: a weighted sum over pairs, divided by a normaliser."""

    term: Term
    direction: Direction
    factor: float  # in the objective
    temperature: float
    truth: Truth  # in the direction of the sum
    label_weight_P: Tensor | None

    @property
    def reduction(self) -> Reduction:
        return self.term.applied

    @property
    def closed(self) -> bool:
        """Whether it is summed in closed form, or else by autograd."""
        return self.term.is_closed(self.label_weight_P is not None)

    def _anchored(self, s_QP: Tensor) -> Tensor:
        """The scores with anchors as rows."""
        return s_QP.T if self.direction == "l2q" else s_QP

    def _targets(self, target_E: Tensor) -> Tensor:
        """The targets of the pairs, as the loss expects them."""
        inverse_propensity_E = self.truth.inverse_propensity_E
        if self.term.loss.targets == "relevance" or inverse_propensity_E is None:
            return target_E
        return target_E * inverse_propensity_E.to(target_E.dtype)

    def value(self, s_QP: Tensor) -> Tensor:
        """The value by autograd, from the loss of every pair."""
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
        t_QP = self.reduction.targets(y_QP)
        if self.term.loss.targets != "relevance":
            at = self.truth.row_E, self.truth.column_E
            t_QP = t_QP.index_put(at, self._targets(t_QP[at]))
        l_QP = self.term.loss.terms(s_QP, t_QP)
        if l_QP.shape != s_QP.shape:
            raise PluginError(
                Problem(
                    f"loss {self.term.name!r}",
                    f"terms() returned shape {tuple(l_QP.shape)} for scores of shape {tuple(s_QP.shape)}",
                    "return one value per pair; leave sums and averages to the reduction",
                )
            )
        # Pairs without a weight add exactly 0, even if their loss is inf (0 * inf is NaN).
        return (w_QP * l_QP.masked_fill(w_QP == 0, 0)).sum() / normaliser

    def part(self, dtype: torch.dtype) -> Part:
        """The input of the closed form."""
        y_QM, place_E = self.truth.compact(dtype)
        target_E = self._targets(self.reduction.targets(y_QM).reshape(-1).index_select(0, place_E))
        scale, by_label = self.factor / self.temperature, self.direction == "l2q"
        if self.reduction.weighs_cells_alike:
            weight = self.reduction.cell_weight(
                self.truth.shape[0] * self.truth.shape[1] - len(self.truth.ignored_row_I)
            )
            pairs = Pairs(self.truth.row_E, self.truth.column_E, target_E, torch.full_like(target_E, weight))
            return Part(self.term.loss, by_label, pairs, scale, weight)
        w_QM = self.reduction.weights(y_QM)
        weight_E = w_QM.reshape(-1).index_select(0, place_E) / self.reduction.normaliser(w_QM)
        if self.label_weight_P is not None:
            labels_E = self.truth.row_E if by_label else self.truth.column_E
            weight_E = weight_E * self.label_weight_P.index_select(0, labels_E)
        return Part(self.term.loss, by_label, Pairs(self.truth.row_E, self.truth.column_E, target_E, weight_E), scale)


def _check_scores(scores_QP: Tensor) -> None:
    if scores_QP.ndim != 2 or not scores_QP.is_floating_point():
        raise ValueError(f"scores must be a float matrix, not {scores_QP.dtype} of shape {tuple(scores_QP.shape)}")


def _check_labels(what: str, x_P: Tensor | None, shape: Sequence[int]) -> None:
    if x_P is not None and x_P.shape != tuple(shape[1:]):
        raise ValueError(f"{what} must have one value per label: {tuple(x_P.shape)} for scores {tuple(shape)}")


def _reduced_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of losses and sums for scores of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else contextlib.nullcontext()


def _largest(x: Tensor) -> float:
    """The largest absolute value. For the CPU only: elsewhere it would wait for the device."""
    return float(torch.linalg.vector_norm(x, math.inf))


def _evaluation(total: Tensor, sums: Sequence[TermSum], values: Sequence[Tensor]) -> Evaluation:
    parts = [TermValue(s.term.name, s.direction, v, s.factor * v) for s, v in zip(sums, values, strict=True)]
    return Evaluation(total, parts)


def _by_temperature(sums: Sequence[TermSum]) -> list[tuple[float, list[TermSum]]]:
    temperatures = dict.fromkeys(part.temperature for part in sums)
    return [(value, [part for part in sums if part.temperature == value]) for value in temperatures]


def _outputs(ctx: Any, sums: Sequence[TermSum], found: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
    """The weighted total (differentiable) and the value of each sum (not)."""
    values = [found[id(part)] for part in sums]
    ctx.mark_non_differentiable(*values)
    return torch.stack([part.factor * value for part, value in zip(sums, values, strict=True)]).sum(), *values


class _OfScores(torch.autograd.Function):
    """Sums in closed form; the gradient matrix is computed with the value and kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, s_QP: Tensor, truth: Truth, sums: Sequence[TermSum], bound: float) -> tuple[Tensor, ...]:
        found: dict[int, Tensor] = {}
        gradient_QP: Tensor | None = None
        for temperature, group in _by_temperature(sums):

            def fill(rows: slice, out_BP: Tensor, scale: float = 1 / temperature) -> None:
                torch.mul(s_QP[rows], scale, out=out_BP)

            values: list[Tensor] = []
            parts = [part.part(s_QP.dtype) for part in group]
            form = ClosedForm(fill, truth, parts, s_QP.dtype, bound / temperature)
            for rows, gradient_BP in form.gradients(values):
                if gradient_QP is None:
                    gradient_QP = gradient_BP if len(gradient_BP) == len(s_QP) else torch.zeros_like(s_QP)
                if gradient_QP is not gradient_BP:
                    gradient_QP[rows] += gradient_BP
            found |= {id(part): value for part, value in zip(group, values, strict=True)}
        ctx.save_for_backward(gradient_QP)
        return _outputs(ctx, sums, found)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_QP,) = ctx.saved_tensors
        return gradient_QP * upstream[0], None, None, None


def _add_product(total_AD: Tensor, g_AB: Tensor, x_BD: Tensor, first: bool) -> None:
    """Add to the total, which is uninitialised at first."""
    if total_AD.dtype == g_AB.dtype:
        torch.addmm(total_AD, g_AB, x_BD, beta=0 if first else 1, out=total_AD)
    elif first:
        total_AD.copy_(g_AB @ x_BD)
    else:
        total_AD.add_(g_AB @ x_BD)


class _OfVectors(torch.autograd.Function):
    """Sums in closed form of the scores q z'; the gradient goes directly to the vectors: dq = G z, dz = G' q."""

    @staticmethod
    def forward(
        ctx: Any, q_QD: Tensor, z_PD: Tensor, truth: Truth, sums: Sequence[TermSum], bound: float
    ) -> tuple[Tensor, ...]:
        found: dict[int, Tensor] = {}
        dtype = _reduced_in(q_QD.dtype)
        dq_QD, dz_PD = (torch.empty_like(x_XD, dtype=dtype) for x_XD in (q_QD, z_PD))
        for number, (temperature, group) in enumerate(_by_temperature(sums)):

            def fill(rows: slice, out_BP: Tensor, scale: float = 1 / temperature) -> None:
                # In pieces, because a product keeps a reordered copy of its labels.
                for z_CD, out_BC in zip(z_PD.split(LABELS_AT_ONCE), out_BP.split(LABELS_AT_ONCE, dim=1), strict=True):
                    if out_BP.dtype == q_QD.dtype:
                        torch.addmm(out_BC, q_QD[rows], z_CD.T, beta=0, alpha=scale, out=out_BC)
                    else:
                        torch.mul(q_QD[rows] @ z_CD.T, scale, out=out_BC)

            values: list[Tensor] = []
            form = ClosedForm(fill, truth, [part.part(dtype) for part in group], dtype, bound / temperature)
            for rows, gradient_BP in form.gradients(values):
                g_BP = gradient_BP.to(q_QD.dtype)
                _add_product(dq_QD[rows], g_BP, z_PD, first=number == 0)
                _add_product(dz_PD, g_BP.T, q_QD[rows], first=number == 0 and rows.start == 0)
            found |= {id(part): value for part, value in zip(group, values, strict=True)}
        ctx.save_for_backward(dq_QD.to(q_QD.dtype), dz_PD.to(q_QD.dtype))
        return _outputs(ctx, sums, found)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        dq_QD, dz_PD = ctx.saved_tensors
        return dq_QD * upstream[0], dz_PD * upstream[0], None, None, None
