"""A classifier against all labels, block by block: neither the scores nor the gradient of the table exist as a whole.

observe   s_QB of each block: log-sum-exp of every query over its rivals, by online rescaling; scores of the positives
back      s_QB again, its gradient g_QB, dq += g z, dz = g^T q, and the rows of the block are updated at once

The first pass is only needed by multi-class terms with queries as anchors. With labels as anchors a block is complete,
and so is every cell of a binary term. Dropout of the rows is drawn from a seed per block, the same in every pass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Batch, Head, MultiClassLoss, Pairs
from xmclab.heads.classifier import Classifier
from xmclab.objectives import Objective, TermValue, _Sum
from xmclab.reductions.ova import Ova
from xmclab.tables import RowOptimizer, read, widened
from xmclab.truth import Truth

CELLS = 1 << 19  # scores of a block, at the most (unless a block is a single label)
UpdateBlock = Callable[[slice, Tensor], None]  # (rows, their gradient)


def streams_all_labels(head: Head, objective: Objective, weighted: bool) -> bool:
    """Whether a head is trained against all labels block by block, and not from a matrix of scores."""
    return isinstance(head, Classifier) and objective.needs_all and can_stream(objective, weighted)


def can_stream(objective: Objective, has_label_weights: bool) -> bool:
    """Whether all terms can be summed over blocks of labels; the others need the matrix of scores."""
    losses = [term.loss for term in objective.terms]
    binary = [loss for loss in losses if not isinstance(loss, MultiClassLoss)]
    known = all(loss.has_closed_form and (not isinstance(loss, MultiClassLoss) or loss.is_of_lead) for loss in losses)
    return known and not (binary and has_label_weights)


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
    """The truth of a batch over all labels, its pairs ordered by label and cut into blocks on the host."""

    truth: Truth  # queries by labels
    labels_U: Tensor  # labels that have a positive in the batch, ascending
    anchor_truth: Truth  # those labels by queries
    blocks: list[Block]

    @staticmethod
    def of_batch(batch: Batch, device: torch.device | str, size: int | None = None) -> LabelBlocks:
        """Cut the labels of a batch, which are all there are, into blocks of `size` (default: by `CELLS`)."""
        queries, labels = len(batch.rows_Q), len(batch.labels_P)
        order_E, order_I = (np.argsort(columns, kind="stable") for columns in (batch.positives[1], batch.ignored[1]))
        row_E, column_E, target_E = (part[order_E] for part in batch.positives)
        ignored_row_I, ignored_column_I = (part[order_I] for part in batch.ignored)
        labels_U, anchor_E = np.unique(column_E, return_inverse=True)
        kept_J = np.flatnonzero(np.isin(ignored_column_I, labels_U))
        anchor_J = np.searchsorted(labels_U, ignored_column_I[kept_J])

        def truth(shape: tuple[int, int], *parts: NDArray[np.generic]) -> Truth:
            most = (int(np.bincount(where).max(initial=1)) for where in parts[:2])
            return Truth(shape, *(torch.from_numpy(part).to(device) for part in parts), *most)  # type: ignore[arg-type]

        size = size or max(CELLS // max(queries, 1), 1)
        edges = [*range(0, labels, size), labels]

        def cuts(columns: NDArray[Any]) -> list[slice]:
            return [slice(a, b) for a, b in pairwise(np.searchsorted(columns, edges).tolist())]

        whole = [slice(a, b) for a, b in pairwise(edges)]
        lists = cuts(column_E), cuts(ignored_column_I), cuts(labels_U), cuts(ignored_column_I[kept_J])
        return LabelBlocks(
            truth((queries, labels), row_E, column_E, target_E, ignored_row_I, ignored_column_I),
            torch.from_numpy(labels_U).to(device),
            truth((len(labels_U), queries), anchor_E, row_E, target_E, anchor_J, ignored_row_I[kept_J]),
            [Block(*parts) for parts in zip(whole, *lists, strict=True)],
        )


class _Streamed(ABC):
    """One term in one direction, summed over blocks."""

    def __init__(self, part: _Sum, share: float, dtype: torch.dtype) -> None:
        self.part, self.truth = part, part.truth
        self.slope = share * part.factor / part.temperature  # of the objective by a scaled score
        self.inverse_temperature = 1 / part.temperature
        y_QM, place_E = part.truth.compact(dtype)
        self.w_QM, at = part.reduction.weights(y_QM), (part.truth.row_E, place_E)
        self.target_E, self.weight_E = part.reduction.targets(y_QM)[at], self.w_QM[at]
        self.value = y_QM.new_zeros((), dtype=torch.float64)

    @abstractmethod
    def gradient(self, s_QB: Tensor, block: Block) -> Tensor:
        """Of the objective by the raw scores of a block; adds to the value unless that is known already."""

    def _at(self, block: Block) -> tuple[Tensor, Tensor]:
        return self.truth.row_E[block.pairs], self.truth.column_E[block.pairs] - block.labels.start

    def _hide_ignored(self, x_QB: Tensor, block: Block, value: float) -> Tensor:
        if block.ignored.start == block.ignored.stop:
            return x_QB
        rows, columns = self.truth.ignored_row_I[block.ignored], self.truth.ignored_column_I[block.ignored]
        return x_QB.index_put_((rows, columns - block.labels.start), x_QB.new_full((), value))


class _Cells(_Streamed):
    """A binary term: every block by itself, in the closed form of the loss."""

    def __init__(self, part: _Sum, share: float, dtype: torch.dtype) -> None:
        super().__init__(part, share, dtype)
        assert isinstance(part.reduction, Ova)
        cells = part.truth.shape[0] * part.truth.shape[1] - len(part.truth.ignored_row_I)
        self.normaliser = 1 if part.reduction.cells == "sum" else max(cells, 1)

    def gradient(self, s_QB: Tensor, block: Block) -> Tensor:
        target_E = self.target_E[block.pairs]
        pairs = Pairs(*self._at(block), target_E, torch.ones_like(target_E))
        x_QB = self._hide_ignored(s_QB * self.inverse_temperature, block, -math.inf)
        value, gradient_QB = self.part.term.loss.value_and_grad(x_QB, pairs)
        self.value = self.value + value / self.normaliser
        return gradient_QB.mul_(self.slope / self.normaliser)


class _Queries(_Streamed):
    """A multi-class term with queries as anchors: `observe` all blocks, `close`, then ask for gradients."""

    def __init__(self, part: _Sum, share: float, dtype: torch.dtype) -> None:
        super().__init__(part, share, dtype)
        assert isinstance(part.term.loss, MultiClassLoss)
        self.loss = part.term.loss
        self.weight_E = self.weight_E / part.reduction.normaliser(self.w_QM)
        if part.label_weight_P is not None:
            self.weight_E = self.weight_E * part.label_weight_P[part.truth.column_E]
        self.s_E = torch.empty_like(self.weight_E)
        self.top_Q = self.w_QM.new_full((part.truth.shape[0],), torch.finfo(dtype).min)
        self.sum_Q = torch.zeros_like(self.top_Q)

    def observe(self, s_QB: Tensor, block: Block) -> None:
        """Take a block into the log-sum-exp of the rivals. Overwrites the scores."""
        x_QB, at = s_QB.mul_(self.inverse_temperature), self._at(block)
        self.s_E[block.pairs] = x_QB[at]
        if self.loss.rivals == "negatives":
            x_QB.index_put_(at, x_QB.new_full((), -math.inf))
        self._hide_ignored(x_QB, block, -math.inf)
        top_Q = torch.maximum(self.top_Q, x_QB.amax(dim=1))
        self.sum_Q.mul_((self.top_Q - top_Q).exp()).add_(x_QB.sub_(top_Q.unsqueeze(1)).exp_().sum(dim=1))
        self.top_Q = top_Q

    def close(self) -> None:
        """All blocks were observed: the value is known, and what the gradients need."""
        log_sum_Q = self.top_Q + self.sum_Q.log()
        value_E, pull_E = self.loss.of_lead(self.s_E - log_sum_Q[self.truth.row_E])
        self.value = (self.weight_E * value_E).sum()
        self.pull_E = pull_E * self.weight_E * self.slope
        pull_Q = torch.zeros_like(log_sum_Q).index_add_(0, self.truth.row_E, self.pull_E)
        # pull * exp(x) / sum as one exponential; a query without rivals or weight pulls nothing
        self.offset_Q1 = (pull_Q.log() - log_sum_Q).masked_fill(pull_Q <= 0, -math.inf).unsqueeze(1)

    def gradient(self, s_QB: Tensor, block: Block) -> Tensor:
        gradient_QB = torch.add(self.offset_Q1, s_QB, alpha=self.inverse_temperature).exp_()
        self._hide_ignored(gradient_QB, block, 0.0)
        joint = self.loss.rivals == "all"
        return gradient_QB.index_put_(self._at(block), -self.pull_E[block.pairs], accumulate=joint)


class _Labels(_Streamed):
    """A multi-class term with labels as anchors: those of a block that have a positive, in the closed form."""

    def __init__(self, part: _Sum, share: float, dtype: torch.dtype, labels_U: Tensor) -> None:
        super().__init__(part, share, dtype)
        self.labels_U = labels_U
        self.weight_E = self.weight_E / part.reduction.normaliser(self.w_QM)
        if part.label_weight_P is not None:
            self.weight_E = self.weight_E * part.label_weight_P[labels_U][part.truth.row_E]

    def gradient(self, s_QB: Tensor, block: Block) -> Tensor:
        columns_U = self.labels_U[block.anchors] - block.labels.start
        x_UQ = s_QB.index_select(1, columns_U).mul_(self.inverse_temperature).T.contiguous()
        if block.anchors_ignored.start != block.anchors_ignored.stop:
            rows = self.truth.ignored_row_I[block.anchors_ignored] - block.anchors.start
            columns = self.truth.ignored_column_I[block.anchors_ignored]
            x_UQ.index_put_((rows, columns), x_UQ.new_full((), -math.inf))
        pairs = Pairs(
            self.truth.row_E[block.pairs] - block.anchors.start,
            self.truth.column_E[block.pairs],
            self.target_E[block.pairs],
            self.weight_E[block.pairs],
        )
        value, gradient_UQ = self.part.term.loss.value_and_grad(x_UQ, pairs)
        self.value = self.value + value
        return torch.zeros_like(s_QB).index_copy_(1, columns_U, gradient_UQ.T.mul(self.slope))


class AllLabels:
    """One step of a classifier head against all labels.

    Args:
        share: of the head in the total, in the gradients only.
        q_QD: query vectors; their gradient is `dq_QD` after `backward`.
        label_weight_L: weights of the labels' pairs.
        seed_for: seed of the dropout of a block.
    """

    def __init__(
        self,
        head: Classifier,
        objective: Objective,
        share: float,
        q_QD: Tensor,
        blocks: LabelBlocks,
        label_weight_L: Tensor | None,
        seed_for: Callable[[int], int],
    ) -> None:
        self.head, self.blocks, self.seed_for = head, blocks, seed_for
        head.psi.settle()
        self.q_QD = widened(q_QD.detach())
        weight_L = None if label_weight_L is None else label_weight_L.to(self.q_QD.dtype)
        self.sums = list(self._sums(objective, share, weight_L))
        self.dq_QD = torch.zeros_like(self.q_QD)
        self.square = self.q_QD.new_zeros(())  # of the norm of the gradient of the table
        self._observe()

    def _sums(self, objective: Objective, share: float, weight_L: Tensor | None) -> Iterator[_Streamed]:
        dtype, truths = self.q_QD.dtype, self.blocks
        for part in objective.sums(truths.truth, weight_L, anchors=truths.anchor_truth):
            if part.direction == "cells":
                yield _Cells(part, share, dtype)
            elif part.direction == "q2l":
                yield _Queries(part, share, dtype)
            else:
                yield _Labels(part, share, dtype, truths.labels_U)

    def _rows(self, number: int, block: Block) -> tuple[Tensor, Tensor]:
        """(rows_BD, z_BD) of a block, with the way from one to the other for `_to_rows`."""
        rows_BD = widened(read(self.head.psi.weight.detach(), block.labels)).requires_grad_()
        if self.head.training and self.head.row_dropout:
            torch.manual_seed(self.seed_for(number))
        return rows_BD, self.head.label_vectors(rows_BD)

    def _scores(self, z_BD: Tensor) -> Tensor:
        return self.q_QD @ z_BD.detach().T

    def _observe(self) -> None:
        queries = [part for part in self.sums if isinstance(part, _Queries)]
        for number, block in enumerate(self.blocks.blocks if queries else []):
            s_QB = self._scores(self._rows(number, block)[1])
            for part in queries:
                part.observe(s_QB if part is queries[-1] else s_QB.clone(), block)
        for part in queries:
            part.close()

    def backward(self, update: UpdateBlock | None = None) -> None:
        """Sum up values and `dq_QD`; give the gradient of each block of the table to `update`."""
        for block, z_BD, g_QB, gradient_BD in self._gradients():
            self.dq_QD.addmm_(g_QB, z_BD)
            self.square += gradient_BD.square().sum()
            if update:
                update(block.labels, gradient_BD)

    def replay(self, update: UpdateBlock, factor: Tensor) -> None:
        """After a `backward` without an update: compute the gradients again, give them times `factor` to `update`."""
        for block, _, _, gradient_BD in self._gradients():
            update(block.labels, gradient_BD.mul_(factor))

    def _gradients(self) -> Iterator[tuple[Block, Tensor, Tensor, Tensor]]:
        """(block, z_BD, g_QB, gradient of its rows of the table)"""
        for number, block in enumerate(self.blocks.blocks):
            rows_BD, z_BD = self._rows(number, block)
            s_QB = self._scores(z_BD)
            g_QB: Tensor | None = None
            for part in self.sums:
                gradient_QB = part.gradient(s_QB, block)
                g_QB = gradient_QB if g_QB is None else g_QB.add_(gradient_QB)
            assert g_QB is not None
            dz_BD = g_QB.T @ self.q_QD
            gradient_BD = dz_BD if z_BD is rows_BD else torch.autograd.grad(z_BD, rows_BD, dz_BD)[0]
            yield block, z_BD.detach(), g_QB, gradient_BD

    @property
    def parts(self) -> list[TermValue]:
        """The values of the terms, after `backward` and before a `replay`."""
        dtype = self.q_QD.dtype
        return [
            TermValue(part.part.term.name, part.part.direction, value, part.part.factor * value)
            for part in self.sums
            for value in [part.value.to(dtype)]
        ]


class StreamedRows:
    """The updates of streamed tables in a step: at once, or when the norm of the whole gradient is known.

    At once takes no further pass, but the norm cannot be bounded then, and what is not finite must be refused before.
    """

    def __init__(self, optimizer: RowOptimizer, at_once: bool) -> None:
        self.optimizer, self.at_once = optimizer, at_once
        self._steps: list[AllLabels] = []

    def backward(self, step: AllLabels) -> None:
        """The values and the gradient of the queries; of the table its norm, or its update."""
        # Finite vectors have finite scores; rows are finite because every update was.
        at_once = self.at_once and (step.q_QD.is_meta or bool(step.q_QD.isfinite().all()))
        step.backward(self._updates(step) if at_once else None)
        self._steps.append(step)

    def norms(self) -> list[Tensor]:
        """Of the gradient of each table."""
        return [step.square.sqrt() for step in self._steps]

    def finish(self, factor: Tensor | None) -> None:
        """Make the updates that are left, of gradients times `factor`."""
        for step in [] if self.at_once else self._steps:
            step.replay(self._updates(step), step.square.new_ones(()) if factor is None else factor)
        self._steps.clear()

    def _updates(self, step: AllLabels) -> UpdateBlock:
        return partial(self.optimizer.update_block, step.head.psi)
