"""The two passes over scores, a block of labels at a time, that give every closed form its value and gradient.

Positives and ignored pairs are short lists; the remaining cells of the matrix are the negatives:

    n_i   = log sum_j exp s_ij                          for each query over its negatives; n_j likewise for each label
    value = f(s_E, n)                                   from the lists alone: the closed form of a loss
    G_ij  = df/dn_i exp(s_ij - n_i) + df/dn_j exp(s_ij - n_j)      on the negatives
    G_E   = df/ds_E                                     on the positives

first     n of each query adds up over the blocks, n of a label is complete in its block; binary terms skip this pass
exchange  what several processes with labels of their own tell each other; nothing in one process
second    a block of scores becomes its gradient in place, and goes to where the scores came from

A matrix that fits in one block is computed once and kept between the passes. Where scores come from is a `Scores`: a
matrix, two sets of vectors (a pool), or the rows of a table (all labels, `training/streaming.py`).
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xmclab.api import BinaryLoss, MultiClassLoss, Pairs
from xmclab.errors import PluginError, Problem
from xmclab.kernels.pages import in_large_pages
from xmclab.objectives.softmax import NEAR, log_sums, slices, weigh_
from xmclab.objectives.truth import Truth, check_labels

if TYPE_CHECKING:
    from xmclab.objectives.objective import Direction, Objective, Term

CELLS_KEPT = 1 << 24  # a matrix up to this size is one block (64 MiB of float32)
CELLS_OF_BLOCK = 1 << 22  # size of the blocks of a larger one
LABELS_AT_ONCE = 1536  # labels per matrix product

Exchange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (n_GQ of own labels, s_E, 0 if not own) to those of all


def alone(log_sum_GQ: Tensor, s_E: Tensor) -> tuple[Tensor, Tensor]:
    """The exchange of a single process."""
    return log_sum_GQ, s_E


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

    @abstractmethod
    def write(self, block: slice, scale: float, out_QB: Tensor) -> None:
        """Write `scale` times the scores of these labels."""

    @abstractmethod
    def backward(self, block: slice, g_QB: Tensor) -> None:
        """Take the gradient of the scores of the block written last, in memory that the next one overwrites."""


class _Group:
    """The directions that share a temperature, and so exponentials."""

    def __init__(self, temperature: float, first: float, shape: Sequence[int], like: Tensor, bound: float) -> None:
        self.rescale = first / temperature  # scores in memory are divided by the first temperature
        self.near = bound / temperature <= NEAR
        self.log_sum_Q = like.new_full((shape[0],), -math.inf)
        self.log_sum_P = like.new_full((shape[1],), -math.inf)
        self.slope_Q, self.slope_P = torch.zeros_like(self.log_sum_Q), torch.zeros_like(self.log_sum_P)
        self.competes = self.by_label = False
        self.softplus: list[int] = []  # binary directions whose negatives cost log(1 + exp s)
        self.others: list[int] = []  # binary directions with their own `of_negatives`

    def of(self, s_QB: Tensor) -> Tensor:
        """The scores at this temperature; the first group's are those in memory."""
        return s_QB if self.rescale == 1 else s_QB * self.rescale


class Engine:
    """The value of directions in closed form, and the gradient of their sum."""

    def __init__(
        self,
        scores: Scores,
        truth: Truth,
        directions: Sequence[Direction],
        label_weight_P: Tensor | None = None,
        share: float = 1.0,
        exchange: Exchange = alone,
    ) -> None:
        """`share`: factor of the gradient, not of the values."""
        self.scores, self.truth, self.directions, self.exchange = scores, truth, directions, exchange
        queries, labels = truth.shape[0], scores.labels
        size = scores.block or (len(labels) if queries * len(labels) <= CELLS_KEPT else CELLS_OF_BLOCK // queries)
        edges = range(labels.start, labels.stop, max(size, 1))
        self.blocks = [slice(start, min(start + edges.step, labels.stop)) for start in edges]
        self.whole = len(labels) == truth.shape[1] and len(self.blocks) == 1
        widest = max((block.stop - block.start for block in self.blocks), default=0)
        # A spare cell at the end takes the list entries of other blocks.
        self.memory = in_large_pages(scores.like.new_empty(queries * widest + 1))
        self.memory[-1:].zero_()
        self.loaded: slice | None = None
        self.s_E = scores.like.new_zeros(len(truth.row_E))
        self.pairs = [self._pairs(direction, label_weight_P) for direction in directions]
        self.cell_weight = [self._cell_weight(term) if term.binary else 0.0 for term in (d.term for d in directions)]
        self.scale = [share * direction.factor / direction.temperature for direction in directions]
        self.groups = self._grouped()
        self.competes = any(group.competes for group in self.groups.values())
        self.found: list[list[Tensor]] = [[] for _ in directions]  # parts of their values

    def _pairs(self, direction: Direction, label_weight_P: Tensor | None) -> Pairs:
        """The positives with their targets and weights, anchors as rows."""
        truth, term, dtype = self.truth, direction.term, self.s_E.dtype
        by_label = direction.anchors == "l2q"
        anchors = truth.labels if by_label else truth.queries
        target_E = truth.target_E.to(dtype)
        y_AM = anchors.narrow(target_E)
        if not term.binary or term.over_cells:
            target_E = term.reduction.targets(y_AM).reshape(-1).index_select(0, anchors.place_E)
        if term.loss.targets == "inverse_propensity":
            if truth.inverse_propensity_E is None:
                raise ValueError(f"loss {term.name!r} needs label propensities: pass inverse_propensity_P")
            target_E = target_E * truth.inverse_propensity_E.to(dtype)
        if term.binary:
            weight_E = torch.full_like(target_E, self._cell_weight(term))
        else:
            w_AM = term.reduction.weights(y_AM)
            weight_E = w_AM.reshape(-1).index_select(0, anchors.place_E) / term.reduction.normaliser(w_AM)
            if label_weight_P is not None:
                weight_E = weight_E * label_weight_P.to(dtype).index_select(0, truth.column_E)
        if len(self.scores.labels) < truth.shape[1] and direction.anchors != "q2l":  # another process has the rest
            own = self.scores.labels
            weight_E = weight_E * ((truth.column_E >= own.start) & (truth.column_E < own.stop))
        columns_E = truth.row_E if by_label else truth.column_E
        return Pairs(anchors.row_E, columns_E, target_E, weight_E)

    def _cell_weight(self, term: Term) -> float:
        """Of a binary term; under a reduction that is not made for cells, it is the mean over all of them."""
        cells = self.truth.shape[0] * self.truth.shape[1] - len(self.truth.ignored_row_I)
        return term.reduction.cell_weight(cells) if term.over_cells else 1 / max(cells, 1)

    def _grouped(self) -> dict[float, _Group]:
        groups: dict[float, _Group] = {}
        for number, direction in enumerate(self.directions):
            temperature, term = direction.temperature, direction.term
            if temperature not in groups:
                first = next(iter(groups), temperature)
                like, bound = self.scores.like, self.scores.bound
                groups[temperature] = _Group(temperature, first, self.truth.shape, like, bound)
            group = groups[temperature]
            group.competes |= not term.binary
            group.by_label |= direction.anchors == "l2q"
            if term.has_softplus_negatives:
                group.softplus.append(number)
            elif term.binary:
                group.others.append(number)
        return groups

    @property
    def evaluation(self) -> Evaluation:
        """The values, after `backward`; those of multi-class terms are known after `observe`."""
        values = [torch.stack(parts).sum() for parts in self.found]
        weighted = [direction.factor * value for direction, value in zip(self.directions, values, strict=True)]
        names = [direction.name for direction in self.directions]
        return Evaluation(torch.stack(weighted).sum(), dict(zip(names, values, strict=True)))

    def observe(self) -> None:
        """The first pass, if some term needs it; then the closed forms."""
        if not self.competes:
            return
        competing = [group for group in self.groups.values() if group.competes]
        for block in self.blocks:
            s_QB = self._load(block)
            for group in competing:
                log_sum_Q, log_sum_B = log_sums(group.of(s_QB), group.near, group.by_label)
                group.log_sum_Q = torch.logaddexp(group.log_sum_Q, log_sum_Q)
                if log_sum_B is not None:
                    group.log_sum_P[block] = log_sum_B
        log_sum_GQ = torch.stack([group.log_sum_Q for group in competing])
        log_sum_GQ, self.s_E = self.exchange(log_sum_GQ, self.s_E)
        for group, log_sum_Q in zip(competing, log_sum_GQ, strict=True):
            group.log_sum_Q = log_sum_Q
        self.gradient_E = self._close()

    def _close(self) -> Tensor:
        """The closed forms at the pairs: their values, and slopes of the log-sum-exps. Returns the gradient there."""
        gradient_E = torch.zeros_like(self.s_E)
        for number, (direction, pairs, scale) in enumerate(zip(self.directions, self.pairs, self.scale, strict=True)):
            group = self.groups[direction.temperature]
            s_E = group.of(self.s_E)
            if direction.term.binary:
                value, slope_E = sum_over_pairs(direction, s_E, pairs)
            elif direction.anchors == "l2q":
                ids_A = self.truth.labels.ids_A
                value, slope_E, slope_A = sum_of_pairs(direction, s_E, group.log_sum_P.index_select(0, ids_A), pairs)
                group.slope_P.index_add_(0, ids_A, slope_A, alpha=scale)
            else:
                value, slope_E, slope_Q = sum_of_pairs(direction, s_E, group.log_sum_Q, pairs)
                group.slope_Q.add_(slope_Q, alpha=scale)
            self.found[number][:1] = [value]
            gradient_E.add_(slope_E, alpha=scale)
        return gradient_E

    def backward(self) -> None:
        """The second pass, after `observe`. If it is repeated, only the gradient counts."""
        for block in self.blocks:
            s_QB = self._load(block)
            if not self.competes:  # binary terms need only the scores of this block
                self.gradient_E = self._close()
            first, *others = self.groups.values()
            more = [self._to_gradient(group, group.of(s_QB), block) for group in others]
            self._to_gradient(first, s_QB, block)
            for g_QB in more:
                s_QB.add_(g_QB)
            self.memory.index_copy_(0, self.at_E, self.gradient_E)
            self.loaded = None
            self.scores.backward(block, s_QB)

    def _load(self, block: slice) -> Tensor:
        """The negatives of a block; the scores of its positives go to `s_E`."""
        queries, width = self.truth.shape[0], block.stop - block.start
        s_QB = self.memory[: queries * width].view(queries, width)
        if self.loaded != block:
            self.loaded = block
            self.scores.write(block, 1 / next(iter(self.groups)), s_QB)
            truth = self.truth
            self.at_E = self._cells(block, truth.row_E, truth.column_E)
            s_E = self.memory.index_select(0, self.at_E)
            self.s_E = s_E if self.whole else torch.where(self.at_E < queries * width, s_E, self.s_E)
            self.memory.index_fill_(0, self.at_E, -math.inf)
            if len(truth.ignored_row_I):
                ignored = self._cells(block, truth.ignored_row_I, truth.ignored_column_I)
                self.memory.index_fill_(0, ignored, -math.inf)
        return s_QB

    def _cells(self, block: slice, row_E: Tensor, column_E: Tensor) -> Tensor:
        """Cells of the matrix as places in the memory; those of other blocks are the spare cell."""
        at_E: Tensor = row_E * (block.stop - block.start) + (column_E - block.start)
        if self.whole:
            return at_E
        return at_E.masked_fill_((column_E < block.start) | (column_E >= block.stop), len(self.memory) - 1)

    def _to_gradient(self, group: _Group, x_QB: Tensor, block: slice) -> Tensor:
        """Overwrite negatives with the gradient of a group; add to the values of its binary directions."""
        rows = (group.log_sum_Q, group.slope_Q) if group.competes else None
        columns = (group.log_sum_P[block], group.slope_P[block]) if group.by_label else None
        softplus = None
        if group.softplus:
            softplus = x_QB.new_full((), sum(self.scale[n] * self.cell_weight[n] for n in group.softplus))
        if not group.others:
            self._add(group.softplus, weigh_(x_QB, rows, columns, softplus, group.near))
            return x_QB
        for cut, x_RB in slices(x_QB):
            slopes = [self._own_slope(number, x_RB.clone()) for number in group.others]
            if group.competes or group.softplus:
                of_rows = (rows[0][cut], rows[1][cut]) if rows else None
                self._add(group.softplus, weigh_(x_RB, of_rows, columns, softplus, group.near))
            else:
                x_RB.zero_()
            for slope_RB, scale in slopes:
                x_RB.add_(slope_RB, alpha=scale)
        return x_QB

    def _own_slope(self, number: int, x_RB: Tensor) -> tuple[Tensor, float]:
        """The slope of a binary loss on negatives, and its factor. May overwrite the scores."""
        loss = self.directions[number].term.loss
        assert isinstance(loss, BinaryLoss)
        value, slope_RB = loss.of_negatives(x_RB)
        self._add([number], value)
        return slope_RB, self.scale[number] * self.cell_weight[number]

    def _add(self, numbers: Sequence[int], of_cells: Tensor) -> None:
        """Add a sum over negative cells to the values of these directions."""
        for number in numbers:
            self.found[number].append(self.cell_weight[number] * of_cells)


def sum_of_pairs(direction: Direction, s_E: Tensor, log_sum_A: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    """The closed form of a multi-class loss, with the shapes of its results checked."""
    loss = direction.term.loss
    assert isinstance(loss, MultiClassLoss)
    found = loss.value_and_grad(s_E, log_sum_A, pairs)
    shapes, wanted = [tuple(x.shape) for x in found], [(), tuple(s_E.shape), tuple(log_sum_A.shape)]
    if shapes != wanted:
        message = f"value_and_grad() must return a sum and its gradients, of shapes {wanted}, not {shapes}"
        raise PluginError(Problem(type(loss).__name__, message))
    return found


def sum_over_pairs(direction: Direction, s_E: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The weighted sum of a binary loss over its pairs and its gradient, by autograd if there is no `of_pairs`."""
    loss = direction.term.loss
    if direction.term.has_closed_pairs:
        assert isinstance(loss, BinaryLoss)
        return loss.of_pairs(s_E, pairs.target_E, pairs.weight_E)
    with torch.enable_grad():
        s_E = s_E.detach().requires_grad_()
        value = (pairs.weight_E * loss.terms(s_E, pairs.target_E)).sum()
        (slope_E,) = torch.autograd.grad(value, s_E)
    return value.detach(), slope_E


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


class Vectors(Scores):
    """Scores q z'; the gradient goes directly to the vectors: dq = G z, dz = G' q."""

    def __init__(self, q_QD: Tensor, z_PD: Tensor, bound: float = math.inf) -> None:
        self.q_QD, self.z_PD, self.bound = q_QD, z_PD, bound
        self.labels = range(len(z_PD))
        self.inputs = (q_QD, z_PD)
        dtype = reduced_in(q_QD.dtype)
        self.like = q_QD.new_empty(0, dtype=dtype)
        self.dq_QD, self.dz_PD = (torch.empty_like(x_XD, dtype=dtype) for x_XD in self.inputs)

    def write(self, block: slice, scale: float, out_QB: Tensor) -> None:
        # In pieces, because a product keeps a reordered copy of its labels.
        pieces = zip(self.z_PD[block].split(LABELS_AT_ONCE), out_QB.split(LABELS_AT_ONCE, dim=1), strict=True)
        for z_CD, out_QC in pieces:
            if out_QB.dtype == self.q_QD.dtype:
                torch.addmm(out_QC, self.q_QD, z_CD.T, beta=0, alpha=scale, out=out_QC)
            else:
                torch.mul(self.q_QD @ z_CD.T, scale, out=out_QC)

    def backward(self, block: slice, g_QB: Tensor) -> None:
        g_QB = g_QB.to(self.q_QD.dtype)
        _add_product(self.dq_QD, g_QB, self.z_PD[block], first=block.start == 0)
        _add_product(self.dz_PD[block], g_QB.T, self.q_QD, first=True)
        self.gradients = self.dq_QD.to(self.q_QD.dtype), self.dz_PD.to(self.q_QD.dtype)


def _add_product(total_AD: Tensor, g_AB: Tensor, x_BD: Tensor, first: bool) -> None:
    """Add to the total, which is uninitialised at first."""
    if total_AD.dtype == g_AB.dtype:
        torch.addmm(total_AD, g_AB, x_BD, beta=0 if first else 1, out=total_AD)
    elif first:
        total_AD.copy_(g_AB @ x_BD)
    else:
        total_AD.add_(g_AB @ x_BD)


def evaluate_vectors(
    objective: Objective,
    q_QD: Tensor,
    z_PD: Tensor,
    truth: Truth,
    label_weight_P: Tensor | None = None,
    bound: float = math.inf,
) -> Evaluation:
    """`objective.evaluate` for the scores `q_QD @ z_PD.T`, in the memory of one score matrix, or of a block of it.

    Matrix products use the dtype of autocast.
    """
    closed = objective.has_closed_form if label_weight_P is None else objective.has_weighted_closed_form
    if not closed or not len(q_QD) or not len(z_PD):
        return objective.evaluate(q_QD @ z_PD.T, truth, label_weight_P, bound)
    if label_weight_P is not None:
        check_labels("label weights", label_weight_P, truth.shape)
    low = (q_QD[:1].detach() @ z_PD[:1].detach().T).dtype  # the dtype of autocast, if it is on
    scores = Vectors(q_QD.to(low), z_PD.to(low), bound)
    return in_closed_form(scores, truth, objective.directions, label_weight_P)


def in_closed_form(
    scores: Matrix | Vectors, truth: Truth, directions: Sequence[Direction], label_weight_P: Tensor | None
) -> Evaluation:
    """The value of directions that have a closed form."""
    device = scores.like.device.type
    available = torch.amp.is_autocast_available(device)
    with torch.autocast(device, enabled=False) if available else contextlib.nullcontext():
        total, *values = _Run.apply(scores, truth, directions, label_weight_P, *scores.inputs)  # type: ignore[no-untyped-call]
    return Evaluation(total, {direction.name: value for direction, value in zip(directions, values, strict=True)})


class _Run(torch.autograd.Function):
    """Both passes at once: the gradient of the inputs is computed with the value and kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Matrix | Vectors,
        truth: Truth,
        directions: Sequence[Direction],
        label_weight_P: Tensor | None,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        engine = Engine(scores, truth, directions, label_weight_P)
        engine.observe()
        engine.backward()
        found = engine.evaluation
        ctx.save_for_backward(*scores.gradients)
        ctx.mark_non_differentiable(*found.values.values())
        return found.total, *found.values.values()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # A loss is usually the root: asking a CPU costs less than a pass over the matrix.
        alone = upstream[0].device.type == "cpu" and upstream[0].item() == 1
        return None, None, None, None, *(x if alone else x * upstream[0] for x in ctx.saved_tensors)


def reduced_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of losses and sums for scores of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32
