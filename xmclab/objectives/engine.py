"""The two passes over scores, a block of labels at a time, that give every closed form its value and gradient.

Positives and ignored pairs are short lists; the remaining cells of the matrix are the negatives:

    n_i   = log sum_j exp s_ij                          for each query over its negatives; n_j likewise for each label
    value = f(s_E, n)                                   from the lists alone: the closed form of a loss
    G_ij  = df/dn_i exp(s_ij - n_i) + df/dn_j exp(s_ij - n_j)      on the negatives
    G_E   = df/ds_E                                     on the positives

first     n of each query adds up over the blocks, n of a label is complete in its block; binary terms skip this pass
exchange  what several processes with labels of their own tell each other; nothing in one process
second    a block of scores becomes its gradient in place, and goes to where the scores came from

A matrix that fits in one block is computed once. Scores are given, or come from vectors (a pool) or a table.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus as softplus_of
from torch.nn.functional import threshold

from xmclab.api import BinaryLoss, MultiClassLoss, Pairs
from xmclab.errors import PluginError, Problem
from xmclab.kernels.dispatch import accelerated_by, large_matrix
from xmclab.objectives.products import add_product_, inner_products, multiply
from xmclab.objectives.scores import Evaluation, Scores
from xmclab.objectives.truth import Truth, check_labels, pairs_by_autograd

if TYPE_CHECKING:
    from xmclab.objectives.objective import Direction, Objective, Term

CELLS_KEPT = 1 << 24  # on a CPU, a matrix up to this size is one block (64 MiB of float32)
CELLS_OF_BLOCK = 1 << 22  # and this is the size of the blocks of a larger one
LABELS_AT_ONCE = 1536  # labels per matrix product of a CPU
CELLS_OF_LAUNCH = 1 << 27  # elsewhere it is both, as every block costs launches
NEAR = 60.0  # exp(+-60) and sums of 1e10 of them are normal float32 numbers
WIDEST = 80.0  # and so is this exponential
CELLS_OF_SLICE = 1 << 20  # to fit the cache of a CPU

Anchored = tuple[Tensor, Tensor]  # (log-sum-exp, slope) of each row, or of each column
Exchange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (n_GQ of own labels, s_E, 0 if not own) to those of all


@accelerated_by("scores", when=large_matrix, by_torch=True)
def log_sums(s_QB: Tensor, near: bool, by_column: bool) -> tuple[Tensor, Tensor | None]:
    """The log-sum-exp of every row, and of every column if wanted; -inf if all candidates are absent."""
    rows, columns = [], []
    for _, s_RB in slices(s_QB):
        if near:
            e_RB = s_RB.exp()
            rows.append(_sum(e_RB, dim=1))
            columns += [_sum(e_RB, dim=0)] if by_column else []
        else:
            rows.append(_log_sum_exp(s_RB, dim=1))
            columns += [_log_sum_exp(s_RB, dim=0)] if by_column else []
    row_Q, column_RB = torch.cat(rows), torch.stack(columns) if by_column else None
    if near:
        return row_Q.log(), None if column_RB is None else column_RB.sum(dim=0).log()
    return row_Q, None if column_RB is None else column_RB.logsumexp(dim=0)


@accelerated_by("scores", when=large_matrix, by_torch=True)
def weigh_(
    s_QB: Tensor, rows: Anchored | None, columns: Anchored | None, softplus: Tensor | None, near: bool
) -> Tensor:
    """Overwrite s_ij by slope_i exp(s_ij - log_sum_i) + slope_j exp(s_ij - log_sum_j) + softplus / (1 + exp -s_ij).

    Args:
        softplus: a number, the factor of the slope of log(1 + exp s).

    Returns:
        The sum of log(1 + exp s); 0 without `softplus`.
    """
    values = []
    for cut, s_RB in slices(s_QB):
        parts = [(rows[0][cut, None], rows[1][cut, None])] if rows else []
        parts += [columns] if columns else []
        if near:
            e_RB = s_RB.exp_()
            w_RB = sum(slope * (-log_sum).clamp(max=WIDEST).exp() for log_sum, slope in parts)
            if softplus is not None:
                values.append(e_RB.log1p().sum())
                w_RB = (1 + e_RB).reciprocal_().mul_(softplus).add_(w_RB)
            e_RB.mul_(w_RB)
            continue
        slopes = [_exp(s_RB - _finite(log_sum)).mul_(slope) for log_sum, slope in parts]
        if softplus is not None:
            values.append(softplus_of(s_RB, threshold=50).sum())  # log(1 + exp(50)) is 50 in float64
            slopes.append(s_RB.sigmoid().mul_(softplus))
        s_RB.copy_(sum(slopes[1:], start=slopes[0]))
    return torch.stack(values).sum() if values else s_QB.new_zeros(())


def on_cpu(x: Tensor) -> bool:
    """Whether passes take the shapes of a CPU and its caches, instead of few and large ones."""
    return x.device.type == "cpu"


def slices(s_QB: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows in pieces, with the place of each; compiled code needs none."""
    cells = CELLS_OF_SLICE if on_cpu(s_QB) else CELLS_OF_LAUNCH
    size = len(s_QB) if torch.compiler.is_compiling() else max(1, cells // max(s_QB.shape[1], 1))
    for start in range(0, len(s_QB), size):
        yield slice(start, start + size), s_QB[start : start + size]


def _log_sum_exp(s_RB: Tensor, dim: int) -> Tensor:
    if not on_cpu(s_RB):
        return s_RB.logsumexp(dim)
    top = _finite(s_RB.amax(dim=dim, keepdim=True))
    return top.squeeze(dim) + _sum(_exp(s_RB - top), dim).log()


def _sum(x_RB: Tensor, dim: int) -> Tensor:
    """On a CPU a product with ones is the fastest sum in both directions."""
    if not on_cpu(x_RB):
        return x_RB.sum(dim)
    ones = x_RB.new_ones(x_RB.shape[dim])
    return x_RB @ ones if dim == 1 else ones @ x_RB


def _exp(x: Tensor) -> Tensor:
    """exp in place, with 0 for the smallest results: a CPU is slow at these, and at infinities."""
    if not on_cpu(x):
        return x.exp_()
    tiny = torch.finfo(x.dtype).tiny
    return threshold(x.clamp_(min=math.log(1.1 * tiny)).exp_(), 1.2 * tiny, 0.0, inplace=True)


def _finite(log_sum_A: Tensor) -> Tensor:
    """Raises that of an anchor without candidates from -inf, as -inf - -inf would be NaN."""
    return log_sum_A.clamp(min=torch.finfo(log_sum_A.dtype).min)


def block_sizes(device: str) -> tuple[int, int]:
    """Cells of the largest matrix that is one block, and of the blocks of a larger one."""
    return (CELLS_KEPT, CELLS_OF_BLOCK) if device == "cpu" else (CELLS_OF_LAUNCH, CELLS_OF_LAUNCH)


class _Group:
    """The directions that share a temperature, and so exponentials."""

    def __init__(self, temperature: float, engine: Engine) -> None:
        scores, shape, directions = engine.scores, engine.truth.shape, engine.directions
        self.rescale = directions[0].temperature / temperature  # scores in memory are divided by the first one
        self.near = scores.bound / temperature <= NEAR
        self.log_sum_Q, self.log_sum_P = (scores.like.new_full((size,), -math.inf) for size in shape)
        self.slope_Q, self.slope_P = torch.zeros_like(self.log_sum_Q), torch.zeros_like(self.log_sum_P)
        members = {n: d for n, d in enumerate(directions) if d.temperature == temperature}
        self.competes = any(not d.term.binary for d in members.values())
        self.by_label = any(d.anchors == "l2q" for d in members.values())
        # Binary directions: those whose negatives cost log(1 + exp s), and those with their own `of_negatives`.
        self.softplus = [n for n, d in members.items() if d.term.has_softplus_negatives]
        self.others = [n for n, d in members.items() if d.term.binary and n not in self.softplus]
        self.of_softplus = sum(engine.scale[n] * engine.cell_weight[n] for n in self.softplus)  # factor of its slope

    def of(self, s_QB: Tensor) -> Tensor:
        """The scores at this temperature; the first group's are those in memory."""
        return s_QB if self.rescale == 1 else s_QB * self.rescale


class Engine:
    """The value of directions in closed form, and the gradient of their sum."""

    writes = True  # scores, to memory

    def __init__(
        self,
        scores: Scores,
        truth: Truth,
        directions: Sequence[Direction],
        label_weight_P: Tensor | None = None,
        share: float = 1.0,
        exchange: Exchange | None = None,
    ) -> None:
        """`share`: factor of the gradient, not of the values. `exchange`: between processes; None: there is one."""
        self.scores, self.truth, self.directions, self.exchange = scores, truth, directions, exchange
        queries, labels = truth.shape[0], scores.labels
        kept, cells = block_sizes(scores.like.device.type)
        size = scores.block or (len(labels) if queries * len(labels) <= kept else cells // queries)
        edges = range(labels.start, labels.stop, max(size, 1))
        self.blocks = [slice(start, min(start + edges.step, labels.stop)) for start in edges]
        self.whole = len(labels) == truth.shape[1] and len(self.blocks) == 1
        widest = max((block.stop - block.start for block in self.blocks), default=0)
        self.memory = scores.like.new_empty(queries * widest * self.writes + 1)
        self.memory[-1:].zero_()  # a spare cell that takes the list entries of other blocks
        self.loaded: slice | None = None
        self.s_E = scores.like.new_zeros(len(truth.row_E))
        cells = queries * truth.shape[1] - len(truth.ignored_row_I)
        # A binary loss under a reduction that is not made for cells is the mean over all of them.
        self.cell_weight = [
            d.term.reduction.cell_weight(cells) if d.term.over_cells else 1 / max(cells, 1) for d in directions
        ]
        self.pairs = self._pairs(label_weight_P)
        self.scale = [share * direction.factor / direction.temperature for direction in directions]
        self.groups = {t: _Group(t, self) for t in dict.fromkeys(d.temperature for d in directions)}
        self.competes = any(group.competes for group in self.groups.values())
        self.found: list[list[Tensor]] = [[] for _ in directions]  # parts of their values

    def _pairs(self, label_weight_P: Tensor | None) -> list[Pairs]:
        """The positives with the targets and weights of each direction, anchors as rows."""
        truth, like, own, pairs = self.truth, self.s_E, self.scores.labels, []
        sides = [truth.labels if direction.anchors == "l2q" else truth.queries for direction in self.directions]
        weights = [
            None if d.term.binary else truth.weigh(d.term.reduction, anchors.target_AM.to(like.dtype), anchors.place_E)
            for d, anchors in zip(self.directions, sides, strict=True)
        ]
        for direction, anchors, w_AM, cell in zip(self.directions, sides, weights, self.cell_weight, strict=True):
            target_E = truth.target_E.to(like.dtype)
            if direction.term.changes_targets or direction.term.loss.targets != "relevance":
                target_E = truth.targets(direction.term, anchors, target_E)
            if w_AM is None:
                weight_E = torch.full_like(target_E, cell)
            else:
                weight_E = w_AM.reshape(-1).index_select(0, anchors.place_E) / divisor(direction.term, w_AM)
                if label_weight_P is not None:
                    weight_E = weight_E * label_weight_P.to(like.dtype).index_select(0, truth.column_E)
            if len(own) < truth.shape[1] and direction.anchors != "q2l":  # another process has the other labels
                weight_E = weight_E * ((truth.column_E >= own.start) & (truth.column_E < own.stop))
            columns_E = truth.row_E if direction.anchors == "l2q" else truth.column_E
            pairs.append(Pairs(anchors.row_E, columns_E, target_E, weight_E))
        return pairs

    @property
    def evaluation(self) -> Evaluation:
        """The values, after `backward`; those of multi-class terms are known after `observe`."""
        values = {d.name: torch.stack(parts).sum() for d, parts in zip(self.directions, self.found, strict=True)}
        return Evaluation(torch.stack([d.factor * values[d.name] for d in self.directions]).sum(), values)

    def observe(self) -> None:
        """The first pass, if some term needs it; then the closed forms."""
        competing = [group for group in self.groups.values() if group.competes]
        if not competing:
            return
        for block in self.blocks:
            s_QB = self._load(block)
            for group in competing:
                log_sum_Q, log_sum_B = log_sums(group.of(s_QB), group.near, group.by_label)
                group.log_sum_Q = torch.logaddexp(group.log_sum_Q, log_sum_Q)
                if log_sum_B is not None:
                    group.log_sum_P[block] = log_sum_B
        if self.exchange:
            log_sum_GQ = torch.stack([group.log_sum_Q for group in competing])
            log_sum_GQ, self.s_E = self.exchange(log_sum_GQ, self.s_E)
            for group, log_sum_Q in zip(competing, log_sum_GQ, strict=True):
                group.log_sum_Q = log_sum_Q
        self.gradient_E = self._close()

    def _close(self) -> Tensor:
        """The closed forms at the pairs: their values, and slopes of the log-sum-exps. Returns the gradient there."""
        gradient_E, ids_A = torch.zeros_like(self.s_E), self.truth.labels.ids_A
        groups = [self.groups[direction.temperature] for direction in self.directions]
        scores = {group: group.of(self.s_E) for group in groups}
        found = []
        for direction, group, pairs in zip(self.directions, groups, self.pairs, strict=True):
            loss, s_E = direction.term.loss, scores[group]
            if isinstance(loss, MultiClassLoss):
                by_label = direction.anchors == "l2q"
                log_sum_A = group.log_sum_P.index_select(0, ids_A) if by_label else group.log_sum_Q
                found.append((log_sum_A, loss.value_and_grad(s_E, log_sum_A, pairs)))
            elif isinstance(loss, BinaryLoss) and direction.term.has_closed_pairs:
                found.append((s_E[:0], (*loss.of_pairs(s_E, pairs.target_E, pairs.weight_E), s_E[:0])))
            else:
                found.append((s_E[:0], (*pairs_by_autograd(loss, s_E, pairs), s_E[:0])))
        for number, (log_sum_A, result) in enumerate(found):
            direction, group, scale = self.directions[number], groups[number], self.scale[number]
            shapes, wanted = [tuple(x.shape) for x in result], [(), tuple(self.s_E.shape), tuple(log_sum_A.shape)]
            if shapes != wanted:
                message = f"value_and_grad() must return a sum and its gradients, of shapes {wanted}, not {shapes}"
                raise PluginError(Problem(type(direction.term.loss).__name__, message))
            value, slope_E, slope_A = result
            self.found[number][:1] = [value]
            gradient_E.add_(slope_E, alpha=scale)
            if direction.anchors == "l2q":
                group.slope_P.index_add_(0, ids_A, slope_A, alpha=scale)
            elif direction.anchors == "q2l":
                group.slope_Q.add_(slope_A, alpha=scale)
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
        truth, queries, width = self.truth, self.truth.shape[0], block.stop - block.start
        s_QB = self.memory[: queries * width].view(queries, width)
        if self.loaded != block:
            self.loaded = block
            self.scores.write(block, 1 / self.directions[0].temperature, s_QB)
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
        softplus = x_QB.new_full((), group.of_softplus) if group.softplus else None
        for cut, x_RB in slices(x_QB) if group.others else [(slice(None), x_QB)]:
            slopes = []
            for number in group.others:
                loss = self.directions[number].term.loss
                assert isinstance(loss, BinaryLoss)
                value, slope_RB = loss.of_negatives(x_RB.clone())
                slopes.append((slope_RB, self.scale[number] * self.cell_weight[number]))
                self._add([number], value)
            if group.competes or group.softplus:
                of_rows = (rows[0][cut], rows[1][cut]) if rows else None
                self._add(group.softplus, weigh_(x_RB, of_rows, columns, softplus, group.near))
            else:
                x_RB.zero_()
            for slope_RB, scale in slopes:
                x_RB.add_(slope_RB, alpha=scale)
        return x_QB

    def _add(self, numbers: Sequence[int], of_cells: Tensor) -> None:
        """Add a sum over negative cells to the values of these directions."""
        for number in numbers:
            self.found[number].append(self.cell_weight[number] * of_cells)


def divisor(term: Term, w_AM: Tensor) -> Tensor:
    """What the weighted sum is divided by; without a `normaliser`, the number of anchors with a positive weight."""
    return term.reduction.normaliser(w_AM) if term.has_normaliser else (w_AM > 0).any(dim=1).sum().clamp(min=1)


class Vectors(Scores):
    """Scores q z'; the gradient goes directly to the vectors: dq = G z, dz = G' q."""

    def __init__(self, q_QD: Tensor, z_PD: Tensor, bound: float = math.inf) -> None:
        self.q_QD, self.z_PD, self.bound = q_QD, z_PD, bound
        self.labels = range(len(z_PD))
        self.inputs = (q_QD, z_PD)
        dtype = torch.promote_types(q_QD.dtype, torch.float32)
        self.like = q_QD.new_empty(0, dtype=dtype)
        self.dq_QD, self.dz_PD = torch.zeros_like(q_QD, dtype=dtype), torch.empty_like(z_PD, dtype=dtype)

    def write(self, block: slice, scale: float, out_QB: Tensor) -> None:
        if out_QB.dtype != self.q_QD.dtype or not on_cpu(out_QB):
            multiply(self.q_QD, self.z_PD[block].T, out_QB, scale)
            return
        # In pieces, because a product of a CPU keeps a reordered copy of its labels.
        pieces = zip(self.z_PD[block].split(LABELS_AT_ONCE), out_QB.split(LABELS_AT_ONCE, dim=1), strict=True)
        for z_CD, out_QC in pieces:
            torch.addmm(out_QC, self.q_QD, z_CD.T, beta=0, alpha=scale, out=out_QC)

    def backward(self, block: slice, g_QB: Tensor) -> None:
        if g_QB.dtype == self.q_QD.dtype:
            self.dq_QD.addmm_(g_QB, self.z_PD[block])
            torch.mm(g_QB.T, self.q_QD, out=self.dz_PD[block])
        else:
            g_QB = g_QB.to(self.q_QD.dtype)
            add_product_(self.dq_QD, g_QB, self.z_PD[block])
            multiply(g_QB.T, self.q_QD, self.dz_PD[block])
        self.gradients = self.dq_QD.to(self.q_QD.dtype), self.dz_PD.to(self.q_QD.dtype)


def evaluate_vectors(
    objective: Objective,
    q_QD: Tensor,
    z_PD: Tensor,
    truth: Truth,
    label_weight_P: Tensor | None = None,
    bound: float = math.inf,
) -> Evaluation:
    """`objective.evaluate` for the scores `q_QD @ z_PD.T`, in the memory of one score matrix, or of a block of it.

    Operands of matrix products are of the dtype of autocast, scores and losses in at least float32.
    """
    closed = objective.has_closed_form if label_weight_P is None else objective.has_weighted_closed_form
    if not closed or not len(q_QD) or not len(z_PD):
        return objective.evaluate(inner_products(q_QD, z_PD), truth, label_weight_P, bound)
    if label_weight_P is not None:
        check_labels("label weights", label_weight_P, truth.shape)
    low, device = torch.promote_types(q_QD.dtype, z_PD.dtype), q_QD.device.type
    if low != torch.float64 and device != "meta" and torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)
    scores = Vectors(q_QD.to(low), z_PD.to(low), bound)
    return in_closed_form(scores, truth, objective.directions, label_weight_P)


def in_closed_form(
    scores: Scores, truth: Truth, directions: Sequence[Direction], label_weight_P: Tensor | None
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
        scores: Scores,
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
