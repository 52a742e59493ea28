"""Values and gradients of losses from a score matrix, computed in place and without a graph.

Positives and ignored pairs are short lists; the remaining cells of the matrix are the negatives:

    n_i   = log sum_j exp s_ij                          for each query over its negatives; n_j likewise for each label
    value = f(s_E, n)                                   from the lists alone: the closed form of a loss
    G_ij  = df/dn_i exp(s_ij - n_i) + df/dn_j exp(s_ij - n_j)      on the negatives
    G_E   = df/ds_E                                     on the positives

Scores within known bounds need no shift: with a_i = df/dn_i / exp n_i, G = exp(s) * (a_i + b_j) takes one exponential
for both directions and every loss. Compiled passes (`fused`) handle each row separately. A large matrix is recomputed
in both passes, a block of rows at a time: the column sums must be known before the first gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from xmclab.api import BinaryLoss, Loss, MultiClassLoss, Pairs
from xmclab.errors import PluginError, Problem
from xmclab.kernels.dispatch import fused_for
from xmclab.objectives.softmax import sum_of_negative_odds, sum_of_negatives
from xmclab.objectives.truth import Truth

MAX_EXPONENT = 60.0  # exp(+-60) and sums of 1e10 of them are normal float32 numbers
CELLS_KEPT = 1 << 24  # a matrix up to this size is kept between the passes (64 MiB of float32)
CELLS_OF_BLOCK = 1 << 22  # block size of a larger one
CELLS_OF_SLICE = 1 << 20  # slice size of element-wise work, to fit the CPU cache

Fill = Callable[[slice, Tensor], object]  # (rows, out_BP): write the scores of these rows


@dataclass(frozen=True)
class Part:
    """A loss in one direction.

    Its value is the weighted sum over the pairs (binary: plus `cell_weight` times the sum over all other cells);
    `scale` times the gradient of that value goes into the gradient matrix.
    """

    loss: Loss
    by_label: bool  # anchors are the columns of the matrix; `pairs` has anchors as rows
    pairs: Pairs
    scale: float
    cell_weight: float = 1.0


class ClosedForm:
    """The parts of an objective that share a temperature, and what they add to its gradient matrix."""

    def __init__(self, fill: Fill, truth: Truth, parts: Sequence[Part], dtype: torch.dtype, bound: float) -> None:
        """`bound`: upper bound of the absolute scores that `fill` writes, after the temperature; inf if unknown."""
        self.fill, self.truth, self.parts = fill, truth, parts
        self.binary = {index: part.loss for index, part in enumerate(parts) if isinstance(part.loss, BinaryLoss)}
        queries, labels = truth.shape
        self.rows = queries if queries * labels <= CELLS_KEPT else max(1, CELLS_OF_BLOCK // labels)
        self.whole = self.rows == queries
        # The spare row absorbs list entries of other blocks.
        self.memory_BP = torch.empty(self.rows + 1, labels, dtype=dtype, device=truth.row_E.device)
        self.start = -1  # first row of the block in memory
        self.s_E = self.memory_BP.new_zeros(len(truth.row_E))
        self.negatives = _negatives(truth.shape, self.memory_BP, bound)
        self.compiled = self.negatives if isinstance(self.negatives, _CompiledScores) else None
        self.competing = any(isinstance(part.loss, MultiClassLoss) for part in parts)
        self.softplus = {index for index, loss in self.binary.items() if self.compiled and loss.has_softplus_negatives}
        self.others = [index for index in self.binary if index not in self.softplus]

    def gradients(self, values: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
        """(rows, G_BP) of each block, in memory that the next one overwrites; appends the parts' values at the end."""
        starts = range(0, self.truth.shape[0], self.rows)
        if self.competing:
            for start in starts:
                self.negatives.add(*self._load(start))
        of_cells = [self.s_E.new_zeros(()) for _ in self.parts]
        for start in starts:
            rows, s_BP = self._load(start)
            if start == 0 or not self.competing:  # binary losses only need the scores of this block
                of_pairs, gradient_E = self._lists()
            for at, s_RP in self._slices(rows, s_BP):
                self._to_gradient(s_RP, at, of_cells)
            self.memory_BP.view(-1).index_copy_(0, self.place_E, gradient_E)
            self.start = -1
            yield rows, s_BP
        values += [pairs + cells for pairs, cells in zip(of_pairs, of_cells, strict=True)]

    def _slices(self, rows: slice, s_BP: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """A block in pieces for `_to_gradient`; compiled passes slice it themselves, but copies must be small."""
        if not self.compiled:
            return _slices(rows, s_BP)
        if not self.others or len(self.parts) == 1:  # all in place
            return _slices(rows, s_BP, s_BP.numel())
        return _slices(rows, s_BP, CELLS_OF_SLICE // 2 if s_BP.device.type == "cpu" else 0)

    def _load(self, start: int) -> tuple[slice, Tensor]:
        """A block of scores without positives and ignored pairs, as `self.negatives` expects it."""
        rows = slice(start, min(start + self.rows, self.truth.shape[0]))
        s_BP = self.memory_BP[: rows.stop - rows.start]
        if self.start != start:
            self.start = start
            self.fill(rows, s_BP)
            truth, memory = self.truth, self.memory_BP.view(-1)
            self.place_E = self._places(truth.row_E, truth.column_E)
            s_E = memory.index_select(0, self.place_E)
            self.s_E = s_E if self.whole else torch.where(self.place_E < s_BP.numel(), s_E, self.s_E)
            memory.index_fill_(0, self.place_E, -math.inf)
            if len(truth.ignored_row_I):
                memory.index_fill_(0, self._places(truth.ignored_row_I, truth.ignored_column_I), -math.inf)
            self.negatives.prepare(s_BP)
        return rows, s_BP

    def _places(self, row_E: Tensor, column_E: Tensor) -> Tensor:
        """Map cells of the matrix to cells of the memory."""
        if not self.whole:
            row_E = row_E - self.start
            row_E.masked_fill_((row_E < 0) | (row_E >= self.rows), self.rows)
        return row_E * self.truth.shape[1] + column_E

    def _lists(self) -> tuple[list[Tensor], Tensor]:
        """The value of each part at its pairs, and the gradient there; passes slopes to `self.negatives`."""
        values, gradient_E = [], torch.zeros_like(self.s_E)
        log_sums = self.negatives.log_sums()
        slopes = [torch.zeros_like(log_sums_A) for log_sums_A in log_sums]
        for part in self.parts:
            if isinstance(part.loss, MultiClassLoss):
                value, slope_E, slope_A = sum_of_pairs(part.loss, self.s_E, log_sums[part.by_label], part.pairs)
                slopes[part.by_label].add_(slope_A, alpha=part.scale)
            else:
                value, slope_E = sum_over_pairs(part, self.s_E)
            values.append(value)
            gradient_E.add_(slope_E, alpha=part.scale)
        self.negatives.set_slopes(*slopes)
        return values, gradient_E

    def _to_gradient(self, s_RP: Tensor, rows: slice, of_cells: list[Tensor]) -> None:
        """Overwrite scores with the gradient; add to the values of binary parts."""
        in_place = bool(self.competing or self.softplus)  # the last pass overwrites the scores
        slopes = []
        for index in self.others:
            part, keep = self.parts[index], in_place or index != self.others[-1]
            value, slope_RP = self.negatives.value_and_grad(self.binary[index], s_RP, keep)
            of_cells[index] = of_cells[index] + part.cell_weight * value
            slopes.append((slope_RP, part.scale * part.cell_weight))
        if self.compiled and self.softplus:
            softplus = sum(self.parts[index].scale * self.parts[index].cell_weight for index in self.softplus)
            value = self.compiled.weigh_with_softplus(s_RP, rows if self.competing else None, softplus)
            for index in self.softplus:
                of_cells[index] = of_cells[index] + self.parts[index].cell_weight * value
        elif self.competing:
            self.negatives.weigh(s_RP, rows)
        else:
            slope_RP, scale = slopes.pop()
            torch.mul(slope_RP, scale, out=s_RP)
        for slope_RP, scale in slopes:
            s_RP.add_(slope_RP, alpha=scale)


def sum_of_pairs(loss: MultiClassLoss, s_E: Tensor, negatives_Q: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    """The closed form of a loss, with the shapes of its results checked."""
    found = loss.value_and_grad(s_E, negatives_Q, pairs)
    shapes, wanted = [tuple(x.shape) for x in found], [(), tuple(s_E.shape), tuple(negatives_Q.shape)]
    if shapes != wanted:
        message = f"value_and_grad() must return a sum and its gradients, of shapes {wanted}, not {shapes}"
        raise PluginError(Problem(type(loss).__name__, message))
    return found


def sum_over_pairs(part: Part, s_E: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of a binary loss over its pairs and its gradient, by autograd if there is no `of_pairs`."""
    loss, pairs = part.loss, part.pairs
    if isinstance(loss, BinaryLoss) and loss.defines("of_pairs"):
        return loss.of_pairs(s_E, pairs.target_E, pairs.weight_E)
    with torch.enable_grad():
        s_E = s_E.detach().requires_grad_()
        value = (pairs.weight_E * loss.terms(s_E, pairs.target_E)).sum()
        (slope_E,) = torch.autograd.grad(value, s_E)
    return value.detach(), slope_E


def _slices(rows: slice, s_BP: Tensor, cells: int = 0) -> Iterator[tuple[slice, Tensor]]:
    """A block in pieces of this many cells (0: chosen for the device), with the rows of each."""
    start = rows.start
    cells = cells or (CELLS_OF_SLICE if s_BP.device.type == "cpu" else CELLS_OF_BLOCK)  # a kernel launch each on a GPU
    for s_RP in s_BP.split(max(1, cells // s_BP.shape[1])):
        yield slice(start, start + len(s_RP)), s_RP
        start += len(s_RP)


def _log_sum_exp(s_RP: Tensor, dim: int) -> Tensor:
    """torch.logsumexp with the sum as a product with ones, which is faster in both directions."""
    top = s_RP.amax(dim=dim, keepdim=True).clamp_(min=torch.finfo(s_RP.dtype).min)
    e_RP = (s_RP - top).exp_()
    ones = s_RP.new_ones(s_RP.shape[dim])
    return top.squeeze(dim) + (e_RP @ ones if dim == 1 else ones @ e_RP).log()


def _negatives(shape: tuple[int, int], memory_BP: Tensor, bound: float) -> _BoundedScores | _AnyScores:
    if fused := fused_for(memory_BP):
        return _CompiledScores(shape, memory_BP, fused)
    return (_BoundedScores if bound <= MAX_EXPONENT else _AnyScores)(shape, memory_BP)


class _BoundedScores:
    """Negatives whose exponentials cannot overflow: one exponential serves both directions and every loss."""

    def __init__(self, shape: tuple[int, int], like: Tensor) -> None:
        self.row_Q, self.column_P = (like.new_zeros(size) for size in shape)
        self.ones = like.new_ones(max(shape))

    def prepare(self, s_BP: Tensor) -> None:
        s_BP.exp_()

    def add(self, rows: slice, e_BP: Tensor) -> None:
        # A product with ones is the fastest sum in both directions.
        torch.mv(e_BP, self.ones[: e_BP.shape[1]], out=self.row_Q[rows])
        self.column_P.addmv_(e_BP.T, self.ones[: e_BP.shape[0]])

    def log_sums(self) -> tuple[Tensor, Tensor]:
        return self.row_Q.log(), self.column_P.log()

    def set_slopes(self, slope_Q: Tensor, slope_P: Tensor) -> None:
        tiny = torch.finfo(slope_Q.dtype).tiny  # an anchor without negatives has a sum of 0
        self.a_Q1 = (slope_Q / self.row_Q.clamp(min=tiny)).unsqueeze(1)
        self.b_P = slope_P / self.column_P.clamp(min=tiny)

    def weigh(self, e_RP: Tensor, rows: slice) -> None:
        e_RP.mul_(self.a_Q1[rows] + self.b_P)

    def value_and_grad(self, loss: BinaryLoss, e_RP: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        return sum_of_negative_odds(loss, e_RP)


class _AnyScores:
    """Negatives with any scores: one exponential per direction, shifted by the anchor's log-sum-exp."""

    def __init__(self, shape: tuple[int, int], like: Tensor) -> None:
        self.row_Q, self.column_P = (like.new_full((size,), -math.inf) for size in shape)

    def prepare(self, s_BP: Tensor) -> None:
        pass

    def add(self, rows: slice, s_BP: Tensor) -> None:
        for at, s_RP in _slices(rows, s_BP):
            self.row_Q[at] = _log_sum_exp(s_RP, dim=1)
            self.column_P = torch.logaddexp(self.column_P, _log_sum_exp(s_RP, dim=0))

    def log_sums(self) -> tuple[Tensor, Tensor]:
        return self.row_Q, self.column_P

    def set_slopes(self, slope_Q: Tensor, slope_P: Tensor) -> None:
        self.slope_Q, self.slope_P = slope_Q, slope_P

    def weigh(self, s_RP: Tensor, rows: slice) -> None:
        lowest = torch.finfo(s_RP.dtype).min  # -inf - -inf would be NaN
        by_query_RP = (s_RP - self.row_Q[rows].clamp(min=lowest).unsqueeze(1)).exp_()
        by_query_RP.mul_(self.slope_Q[rows].unsqueeze(1))
        s_RP.sub_(self.column_P.clamp(min=lowest)).exp_().mul_(self.slope_P).add_(by_query_RP)

    def value_and_grad(self, loss: BinaryLoss, s_RP: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        return sum_of_negatives(loss, s_RP.clone() if keep else s_RP)


class _CompiledScores(_AnyScores):
    """The same in compiled passes, with one exponential for both directions where scores are near 0."""

    def __init__(self, shape: tuple[int, int], like: Tensor, fused: ModuleType) -> None:
        super().__init__(shape, like)
        self.fused = fused
        self.near_Q = like.new_empty(shape[0], dtype=torch.bool)

    def add(self, rows: slice, s_BP: Tensor) -> None:
        self.row_Q[rows], column_P, self.near_Q[rows] = self.fused.log_sums(s_BP)
        self.column_P = torch.logaddexp(self.column_P, column_P)

    def weigh(self, s_RP: Tensor, rows: slice) -> None:
        self.weigh_with_softplus(s_RP, rows, None)

    def weigh_with_softplus(self, s_RP: Tensor, rows: slice | None, softplus: float | None) -> Tensor:
        """Add `softplus` times the gradient of log(1 + exp s), and return its sum; no rows: no multi-class losses."""
        value: Tensor
        if rows is None:
            value = self.fused.softplus_to_grad_(s_RP, softplus)
        else:
            of_rows, of_columns = (self.row_Q[rows], self.slope_Q[rows]), (self.column_P, self.slope_P)
            value = self.fused.weigh_(s_RP, *of_rows, *of_columns, self.near_Q[rows], softplus)
        return value
