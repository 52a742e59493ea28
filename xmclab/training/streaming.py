"""A classifier against all labels, block by block, without the full score matrix or table gradient in memory.

observe   s_QB of each block: log-sum-exp of every query over its rivals, by online rescaling; scores of the positives
back      s_QB again, its gradient g_QB, dq += g z, dz = g^T q, and the rows of the block are updated at once

Only multi-class terms with queries as anchors need the first pass. With labels as anchors a block is complete, and so
is every cell of a binary term. Dropout of the rows is seeded per block, the same in every pass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Batch, BinaryLoss, Head, MultiClassLoss, Pairs
from xmclab.kernels.dispatch import fused_for
from xmclab.model.tables import RowOptimizer, RowTable, in_large_pages, read, widened
from xmclab.objectives.engine import sum_of_pairs, sum_over_pairs
from xmclab.objectives.objective import Objective, TermSum, TermValue
from xmclab.objectives.softmax import sum_of_negatives
from xmclab.objectives.truth import Truth

CELLS = 1 << 22  # maximum number of scores in a block (unless a block is a single label)
UpdateBlock = Callable[[slice, Tensor], None]  # (rows, their gradient)


def streams_all_labels(head: Head, objective: Objective, weighted: bool) -> bool:
    """Whether a head is trained against all labels in blocks, without a score matrix."""
    return isinstance(head.label_rows, RowTable) and objective.needs_all and can_stream(objective, weighted)


def can_stream(objective: Objective, has_label_weights: bool) -> bool:
    """Whether all terms can be summed over blocks of labels; otherwise the score matrix is needed."""
    return all(term.is_closed(has_label_weights) for term in objective.terms)


@dataclass(frozen=True)
class Block:
    """Neighbouring labels, and where their pairs are in the lists of `LabelBlocks`."""

    labels: slice
    pairs: slice
    ignored: slice
    anchors: slice
    anchors_ignored: slice


@dataclass(frozen=True)
class LabelBlocks:
    """The truth of a batch over all labels, its pairs sorted by label and split into blocks on the host."""

    truth: Truth  # queries by labels
    labels_U: Tensor  # labels that have a positive in the batch, ascending
    anchor_truth: Truth  # those labels by queries
    blocks: list[Block]

    @staticmethod
    def of_batch(batch: Batch, device: torch.device | str, size: int | None = None) -> LabelBlocks:
        """Split the labels of a batch, which has all labels, into blocks of `size` (default: from `CELLS`)."""
        queries, labels = len(batch.rows_Q), len(batch.labels_P)
        order_E, order_I = (np.argsort(columns, kind="stable") for columns in (batch.positives[1], batch.ignored[1]))
        rows, columns, targets = batch.positives
        row_E, column_E, target_E = rows[order_E], columns[order_E], targets[order_E]
        ignored_row_I, ignored_column_I = (part[order_I] for part in batch.ignored)
        labels_U = np.unique(column_E)
        anchor_E = np.searchsorted(labels_U, column_E)
        kept_J = np.flatnonzero(np.isin(ignored_column_I, labels_U))
        anchor_J = np.searchsorted(labels_U, ignored_column_I[kept_J])

        size = size or max(CELLS // max(queries, 1), 1)
        edges = [*range(0, labels, size), labels]

        def cuts(columns: NDArray[Any]) -> list[slice]:
            return [slice(a, b) for a, b in pairwise(np.searchsorted(columns, edges).tolist())]

        whole = [slice(a, b) for a, b in pairwise(edges)]
        lists = cuts(column_E), cuts(ignored_column_I), cuts(labels_U), cuts(ignored_column_I[kept_J])
        return LabelBlocks(
            Truth.of_lists((queries, labels), (row_E, column_E, target_E), (ignored_row_I, ignored_column_I), device),
            torch.from_numpy(labels_U).to(device),
            Truth.of_lists(
                (len(labels_U), queries), (anchor_E, row_E, target_E), (anchor_J, ignored_row_I[kept_J]), device
            ),
            [Block(*parts) for parts in zip(whole, *lists, strict=True)],
        )

    def with_propensities(self, inverse_propensity_L: Tensor | None) -> LabelBlocks:
        """The same blocks with inverse propensities of the labels."""
        truth = self.truth.with_propensities(inverse_propensity_L)  # its pairs are in the order of the anchors'
        anchor_truth = replace(self.anchor_truth, inverse_propensity_E=truth.inverse_propensity_E)
        return replace(self, truth=truth, anchor_truth=anchor_truth)


def _cells(row_E: Tensor, column_E: Tensor, columns: slice) -> Tensor:
    """Flat indices of cells in some columns of a matrix, in row-major order."""
    cell_E: Tensor = row_E * (columns.stop - columns.start) + (column_E - columns.start)
    return cell_E


class _Streamed(ABC):
    """One term in one direction, summed over blocks; positives and ignored pairs are lists, other cells negatives."""

    def __init__(self, term: TermSum, share: float, temperature: float, dtype: torch.dtype) -> None:
        """`temperature`: the scores are already divided by this."""
        self.term, self.truth = term, term.truth
        self.part = term.part(dtype)
        self.slope = share * self.part.scale  # d objective / d raw score, per d value / d scaled score
        self.rescale = temperature / term.temperature
        self.value = torch.zeros((), dtype=torch.float64, device=self.truth.row_E.device)

    @abstractmethod
    def gradient(self, s_QB: Tensor, block: Block) -> tuple[Tensor, float]:
        """(g_QB, factor): their product is the gradient of the objective with respect to the raw scores of a block.

        May overwrite the scores; adds to the value unless that is already known.
        """

    def _at(self, block: Block) -> Tensor:
        """Cells of the positives in a block."""
        return _cells(self.truth.row_E[block.pairs], self.truth.column_E[block.pairs], block.labels)

    def _ignored_at(self, block: Block) -> Tensor:
        of = self.truth
        return _cells(of.ignored_row_I[block.ignored], of.ignored_column_I[block.ignored], block.labels)

    def _cut_out(self, x_AC: Tensor, at_E: Tensor, ignored_at_I: Tensor) -> Tensor:
        """The scores of the positives; leaves only the negatives in `x_AC`."""
        x = x_AC.view(-1)
        s_E = x.index_select(0, at_E)
        for cells in (at_E, ignored_at_I):
            if len(cells):
                x.index_fill_(0, cells, -math.inf)
        return s_E

    def _pairs(self, block: Block, first_row: int = 0) -> Pairs:
        """The pairs of a block, with rows relative to `first_row`."""
        of = self.part.pairs
        row_E, column_E = of.row_E[block.pairs] - first_row, of.column_E[block.pairs]
        return Pairs(row_E, column_E, of.target_E[block.pairs], of.weight_E[block.pairs])


class _Cells(_Streamed):
    """A binary term: blocks are independent."""

    def gradient(self, s_QB: Tensor, block: Block) -> tuple[Tensor, float]:
        assert isinstance(self.part.loss, BinaryLoss)
        at_E, weight = self._at(block), self.part.cell_weight
        x_QB = s_QB if self.rescale == 1 else s_QB.mul_(self.rescale)
        s_E = self._cut_out(x_QB, at_E, self._ignored_at(block))
        of_pairs, slope_E = sum_over_pairs(replace(self.part, pairs=self._pairs(block)), s_E)
        of_cells, slope_QB = sum_of_negatives(self.part.loss, x_QB)
        self.value = self.value + of_pairs + weight * of_cells
        slope_QB.view(-1).index_copy_(0, at_E, slope_E / weight)
        return slope_QB, self.slope * weight


class _Queries(_Streamed):
    """A multi-class term with queries as anchors: `observe` all blocks, `close`, then ask for gradients."""

    def __init__(self, term: TermSum, share: float, temperature: float, dtype: torch.dtype) -> None:
        super().__init__(term, share, temperature, dtype)
        self.s_E = torch.empty_like(self.part.pairs.weight_E)
        self.top_Q = self.s_E.new_full((self.truth.shape[0],), torch.finfo(dtype).min)
        self.sum_Q = torch.zeros_like(self.top_Q)

    def observe(self, s_QB: Tensor, block: Block) -> None:
        """Add a block to the log-sum-exp of the negatives. Overwrites the scores."""
        self.s_E[block.pairs] = self._cut_out(s_QB, self._at(block), self._ignored_at(block)) * self.rescale
        if fused := fused_for(s_QB):
            fused.add_row_sums(s_QB, self.rescale, self.top_Q, self.sum_Q)
            return
        x_QB = s_QB.mul_(self.rescale)
        top_Q = torch.maximum(self.top_Q, x_QB.amax(dim=1))
        self.sum_Q.mul_((self.top_Q - top_Q).exp()).add_(x_QB.sub_(top_Q.unsqueeze(1)).exp_().sum(dim=1))
        self.top_Q = top_Q

    def close(self) -> None:
        """After all blocks were observed: compute the value, and what the gradients need."""
        assert isinstance(self.part.loss, MultiClassLoss)
        log_sum_Q = self.top_Q + self.sum_Q.log()
        value, self.slope_E, self.slope_Q = sum_of_pairs(self.part.loss, self.s_E, log_sum_Q, self.part.pairs)
        self.value = value.double()
        self.log_sum_Q = log_sum_Q.clamp(min=torch.finfo(log_sum_Q.dtype).min)

    def gradient(self, s_QB: Tensor, block: Block) -> tuple[Tensor, float]:
        at_E = self._at(block)
        self._cut_out(s_QB, at_E, self._ignored_at(block))
        if fused := fused_for(s_QB):
            fused.weigh_rows_(s_QB, self.rescale, self.log_sum_Q, self.slope_Q)
        else:
            torch.add(-self.log_sum_Q.unsqueeze(1), s_QB, alpha=self.rescale, out=s_QB)
            s_QB.exp_().mul_(self.slope_Q.unsqueeze(1))
        s_QB.view(-1).index_copy_(0, at_E, self.slope_E[block.pairs])
        return s_QB, self.slope


class _Labels(_Streamed):
    """A multi-class term with labels as anchors: each block is complete for its labels that have a positive."""

    def __init__(self, term: TermSum, share: float, temperature: float, dtype: torch.dtype, labels_U: Tensor) -> None:
        super().__init__(term, share, temperature, dtype)
        self.labels_U = labels_U

    def gradient(self, s_QB: Tensor, block: Block) -> tuple[Tensor, float]:
        assert isinstance(self.part.loss, MultiClassLoss)
        columns_U = self.labels_U[block.anchors] - block.labels.start
        x_UQ = s_QB.index_select(1, columns_U).mul_(self.rescale).T.contiguous()
        first, unknown = block.anchors.start, block.anchors_ignored
        queries = x_UQ.shape[1]
        at_E = (self.truth.row_E[block.pairs] - first) * queries + self.truth.column_E[block.pairs]
        ignored_at_I = (self.truth.ignored_row_I[unknown] - first) * queries + self.truth.ignored_column_I[unknown]
        s_E = self._cut_out(x_UQ, at_E, ignored_at_I)
        log_sum_U = x_UQ.logsumexp(dim=1)
        value, slope_E, slope_U = sum_of_pairs(self.part.loss, s_E, log_sum_U, self._pairs(block, first))
        self.value = self.value + value
        shift_U1 = log_sum_U.clamp(min=torch.finfo(x_UQ.dtype).min).unsqueeze(1)
        x_UQ.sub_(shift_U1).exp_().mul_(slope_U.unsqueeze(1)).view(-1).index_copy_(0, at_E, slope_E)
        return torch.zeros_like(s_QB).index_copy_(1, columns_U, x_UQ.T), self.slope


class AllLabels:
    """One step of a classifier head against all labels.

    Args:
        share: weight of the head in the total; applies to the gradients only.
        q_QD: query vectors; their gradient is `dq_QD` after `backward`.
        label_weight_L: weight of each label's pairs.
        seed_for: dropout seed of a block.
    """

    def __init__(
        self,
        head: Head,
        objective: Objective,
        share: float,
        q_QD: Tensor,
        blocks: LabelBlocks,
        label_weight_L: Tensor | None,
        seed_for: Callable[[int], int],
    ) -> None:
        self.head, self.blocks, self.seed_for = head, blocks, seed_for
        assert isinstance(head.label_rows, RowTable), "streams_all_labels() checks this first"
        self.table = head.label_rows
        self.table.settle()
        self.q_QD = widened(q_QD.detach())
        weight_L = None if label_weight_L is None else label_weight_L.to(self.q_QD.dtype)
        self.sums = list(self._sums(objective, share, weight_L))
        self.scaled_q_QD = self.q_QD / self.temperature
        self.dq_QD = torch.zeros_like(self.q_QD)
        largest = max((block.labels.stop - block.labels.start for block in blocks.blocks), default=0)
        self.memory = in_large_pages(self.q_QD.new_empty(len(self.q_QD) * largest))
        self.square = self.q_QD.new_zeros(())  # squared norm of the table's gradient
        self._observe()

    def _sums(self, objective: Objective, share: float, weight_L: Tensor | None) -> Iterator[_Streamed]:
        dtype, labels_U = self.q_QD.dtype, self.blocks.labels_U
        terms = objective.sums(self.blocks.truth, weight_L, dtype)
        self.temperature = terms[0].temperature
        for term in terms:
            if term.direction == "cells":
                yield _Cells(term, share, self.temperature, dtype)
            elif term.direction == "q2l":
                yield _Queries(term, share, self.temperature, dtype)
            else:
                weight_U = None if weight_L is None else weight_L[labels_U]
                term = replace(term, truth=self.blocks.anchor_truth, label_weight_P=weight_U)
                yield _Labels(term, share, self.temperature, dtype, labels_U)

    def _rows(self, number: int, block: Block) -> tuple[Tensor, Tensor]:
        """(rows_BD, z_BD) of a block, with the graph between them for `_to_rows`."""
        rows_BD = widened(read(self.table.weight.detach(), block.labels)).requires_grad_()
        if self.head.training:
            torch.manual_seed(self.seed_for(number))
        return rows_BD, self.head.of_rows(rows_BD)

    def _scores(self, z_BD: Tensor) -> Tensor:
        """s_QB, divided by the first term's temperature, in memory that the next block overwrites."""
        shape = len(self.q_QD), len(z_BD)
        s_QB = self.memory[: shape[0] * shape[1]].view(shape)
        return torch.mm(self.scaled_q_QD, z_BD.detach().T, out=s_QB)

    def _observe(self) -> None:
        queries = [part for part in self.sums if isinstance(part, _Queries)]
        for number, block in enumerate(self.blocks.blocks if queries else []):
            s_QB = self._scores(self._rows(number, block)[1])
            for part in queries:
                part.observe(s_QB if part is queries[-1] else s_QB.clone(), block)
        for part in queries:
            part.close()

    def backward(self, update: UpdateBlock | None = None) -> None:
        """Sum values and `dq_QD`; pass the gradient of each block of the table to `update`."""
        for block, z_BD, g_QB, factor, gradient_BD in self._gradients():
            self.dq_QD.addmm_(g_QB, z_BD, alpha=factor)
            self.square += gradient_BD.flatten().dot(gradient_BD.flatten())
            if update:
                update(block.labels, gradient_BD)

    def replay(self, update: UpdateBlock, factor: Tensor) -> None:
        """After a `backward` without an update: recompute the gradients, pass them times `factor` to `update`."""
        for block, _, _, _, gradient_BD in self._gradients():
            update(block.labels, gradient_BD.mul_(factor))

    def _gradients(self) -> Iterator[tuple[Block, Tensor, Tensor, float, Tensor]]:
        """(block, z_BD, g_QB and its factor, gradient of the block's rows of the table)"""
        for number, block in enumerate(self.blocks.blocks):
            rows_BD, z_BD = self._rows(number, block)
            s_QB = self._scores(z_BD)
            last, *others = reversed(self.sums)
            of_others = [part.gradient(s_QB.clone(), block) for part in others]
            g_QB, factor = last.gradient(s_QB, block)
            if of_others:
                g_QB, factor = g_QB.mul_(factor), 1.0
            for other_QB, other_factor in of_others:
                g_QB.add_(other_QB, alpha=other_factor)
            dz_BD = torch.empty_like(z_BD, dtype=g_QB.dtype)
            torch.addmm(dz_BD, g_QB.T, self.q_QD, beta=0, alpha=factor, out=dz_BD)
            gradient_BD = dz_BD if z_BD is rows_BD else torch.autograd.grad(z_BD, rows_BD, dz_BD)[0]
            yield block, z_BD.detach(), g_QB, factor, gradient_BD

    @property
    def finite(self) -> Tensor:
        """Whether everything known before `backward` is finite: the vectors and the observed values.

        Rows are finite because every update was.
        """
        observed = [part.value for part in self.sums if isinstance(part, _Queries)]
        return torch.stack([x.isfinite().all() for x in (self.q_QD, *observed)]).all()

    @property
    def parts(self) -> list[TermValue]:
        """The values of the terms, after `backward` and before a `replay`."""
        dtype = self.q_QD.dtype
        values = [part.value.to(dtype) for part in self.sums]
        terms = [part.term for part in self.sums]
        return [TermValue(t.term.name, t.direction, v, t.factor * v) for t, v in zip(terms, values, strict=True)]


class StreamedRows:
    """The updates of streamed tables in a step: immediate, or deferred until the norm of the whole gradient is known.

    Immediate updates save a pass, but rule out clipping, and non-finite values must be rejected beforehand.
    """

    def __init__(self, optimizer: RowOptimizer, at_once: bool) -> None:
        self.optimizer, self.at_once = optimizer, at_once
        self._steps: list[AllLabels] = []

    def backward(self, step: AllLabels) -> None:
        """Compute the values, the gradient of the queries, and the norm or the update of the table."""
        at_once = self.at_once and (step.q_QD.is_meta or bool(step.finite))
        step.backward(self._updates(step) if at_once else None)
        self._steps.append(step)

    def norms(self) -> list[Tensor]:
        """The gradient norm of each table."""
        return [step.square.sqrt() for step in self._steps]

    def finish(self, factor: Tensor | None) -> None:
        """Make the deferred updates, with gradients times `factor`."""
        for step in [] if self.at_once else self._steps:
            step.replay(self._updates(step), step.square.new_ones(()) if factor is None else factor)
        self._steps.clear()

    def _updates(self, step: AllLabels) -> UpdateBlock:
        return partial(self.optimizer.update_block, step.table)
