"""The known pairs of a score matrix, as short lists instead of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Batch, Loss, Pairs, Reduction

if TYPE_CHECKING:
    from xmclab.objectives.objective import Term


@dataclass(frozen=True)
class Anchors:
    """The positives by anchor: a reduction weighs those of each anchor in a narrow matrix, M the most of any."""

    row_E: Tensor  # anchor of each pair
    place_E: Tensor  # its cell in the narrow matrix, whose rows are filled from the left
    ids_A: Tensor  # rows or columns of the score matrix that they stand for
    target_AM: Tensor  # the targets in the narrow matrix, 0 elsewhere

    @staticmethod
    def of(row_E: Tensor, ids_A: Tensor, target_E: Tensor) -> Anchors:
        """Place the pairs; on a device other than the CPU it is waited for."""
        num = len(ids_A)
        count_A = row_E.bincount(minlength=num)
        most = max(int(count_A.max()), 1) if len(row_E) else 1
        order_E = row_E.argsort(stable=True)
        before_A = count_A.cumsum(0) - count_A
        rank_E = torch.arange(len(row_E), device=row_E.device) - before_A[row_E[order_E]]
        place_E = row_E * most + torch.empty_like(rank_E).index_copy_(0, order_E, rank_E)
        target_AM = target_E.new_zeros(num, most)
        target_AM.view(-1).index_copy_(0, place_E, target_E)
        return Anchors(row_E, place_E, ids_A, target_AM)

    def to(self, device: torch.device | str) -> Anchors:
        return Anchors(*(x.to(device) for x in (self.row_E, self.place_E, self.ids_A, self.target_AM)))


@dataclass(frozen=True)
class Truth:
    """The positives of queries among labels, and the pairs that are neither positive nor negative."""

    shape: tuple[int, int]  # queries, labels
    row_E: Tensor
    column_E: Tensor
    target_E: Tensor  # > 0
    ignored_row_I: Tensor
    ignored_column_I: Tensor
    queries: Anchors
    labels: Anchors  # only labels that have a positive
    inverse_propensity_E: Tensor | None = None  # for the label of each pair
    drawn_E: Tensor | None = None  # bool, the pairs that their query drew; None: all

    @staticmethod
    def of_batch(batch: Batch, device: torch.device | str) -> Truth:
        """The truth of a batch, prepared on the host, on the device of its scores."""
        shape = len(batch.rows_Q), len(batch.labels_P)
        truth = Truth.of_lists(shape, batch.positives, batch.ignored, device)
        return truth if batch.drawn_E is None else replace(truth, drawn_E=torch.from_numpy(batch.drawn_E).to(device))

    @staticmethod
    def of_lists(
        shape: tuple[int, int],
        positives: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]],
        ignored: tuple[NDArray[np.int64], NDArray[np.int64]],
        device: torch.device | str = "cpu",
    ) -> Truth:
        """The truth from host lists: (row, column, target) of positives, (row, column) of ignored pairs."""
        rows, columns, targets = (torch.from_numpy(part) for part in positives)
        truth = Truth._of(shape, rows, columns, targets, *(torch.from_numpy(part) for part in ignored))
        lists: dict[str, Any] = {
            name: value.to(device) for name, value in vars(truth).items() if isinstance(value, Tensor | Anchors)
        }
        return replace(truth, **lists)

    @staticmethod
    def of_matrix(y_QP: Tensor, ignore_QP: Tensor | None = None, drawn_QP: Tensor | None = None) -> Truth:
        """The truth from a matrix of targets (0: negative), and masks of ignored and of drawn pairs."""
        known_QP = y_QP if ignore_QP is None else y_QP.masked_fill(ignore_QP, 0)
        row_E, column_E = nonzero(known_QP)
        ignored = nonzero(ignore_QP) if ignore_QP is not None else (row_E[:0], row_E[:0])
        shape = (y_QP.shape[0], y_QP.shape[1])
        truth = Truth._of(shape, row_E, column_E, known_QP[row_E, column_E], *ignored)
        return truth if drawn_QP is None else replace(truth, drawn_E=drawn_QP[row_E, column_E])

    @staticmethod
    def _of(
        shape: tuple[int, int],
        row_E: Tensor,
        column_E: Tensor,
        target_E: Tensor,
        ignored_row_I: Tensor,
        ignored_column_I: Tensor,
    ) -> Truth:
        ids_A, anchor_E = column_E.unique(return_inverse=True)
        queries = Anchors.of(row_E, torch.arange(shape[0], device=row_E.device), target_E)
        labels = Anchors.of(anchor_E, ids_A, target_E)
        return Truth(shape, row_E, column_E, target_E, ignored_row_I, ignored_column_I, queries, labels)

    def with_propensities(self, inverse_propensity_P: Tensor | None) -> Truth:
        """The same truth with inverse propensities of the labels."""
        if inverse_propensity_P is None:
            return self
        return replace(self, inverse_propensity_E=inverse_propensity_P[self.column_E])

    @cached_property
    def transposed(self) -> Truth:
        """The same pairs with labels as rows, for matrices of all labels; anchors stay as they are."""
        return replace(
            self,
            shape=(self.shape[1], self.shape[0]),
            row_E=self.column_E,
            column_E=self.row_E,
            ignored_row_I=self.ignored_column_I,
            ignored_column_I=self.ignored_row_I,
        )

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """y_QP: targets, 0 where a pair is not a positive."""
        y_QP = torch.zeros(self.shape, dtype=dtype, device=self.row_E.device)
        return y_QP.index_put_((self.row_E, self.column_E), self.target_E.to(dtype))

    def targets(self, term: Term, anchors: Anchors, target_E: Tensor) -> Tensor:
        """The targets of the pairs, as the loss of the term expects them; `target_E`: as they are."""
        if term.changes_targets:
            target_AM = term.reduction.targets(anchors.target_AM.to(target_E.dtype))
            target_E = target_AM.reshape(-1).index_select(0, anchors.place_E)
        if term.loss.targets == "inverse_propensity":
            if self.inverse_propensity_E is None:
                raise ValueError(f"loss {term.name!r} needs label propensities: pass inverse_propensity_P")
            target_E = target_E * self.inverse_propensity_E.to(target_E.dtype)
        return target_E

    def weigh(self, reduction: Reduction, y_QP: Tensor, at_E: Tensor) -> Tensor:
        """The weights of a matrix of targets, with pair e in cell `at_E[e]`; some reductions see drawn pairs only."""
        if reduction.among == "drawn" and self.drawn_E is not None:
            shown_E = self.target_E.masked_fill(~self.drawn_E, 0).to(y_QP.dtype)
            y_QP = y_QP.flatten().index_copy(0, at_E, shown_E).view_as(y_QP)
        return reduction.weights(y_QP)

    def hide_ignored(self, s_QP: Tensor, value: float) -> Tensor:
        """Overwrite the scores of ignored pairs."""
        at = self.ignored_row_I, self.ignored_column_I
        return s_QP.index_put_(at, s_QP.new_full((), value)) if len(self.ignored_row_I) else s_QP


def nonzero(x_QP: Tensor) -> tuple[Tensor, Tensor]:
    """(row_E, column_E) of cells that are not 0, by row and column."""
    if x_QP.device.type != "cpu":
        row_E, column_E = x_QP.nonzero(as_tuple=True)
        return row_E, column_E
    # numpy skips runs of False, and most cells are.
    cells = np.flatnonzero((x_QP if x_QP.dtype == torch.bool else x_QP != 0).numpy())
    rows, columns = np.divmod(cells, max(x_QP.shape[1], 1))
    return torch.from_numpy(rows), torch.from_numpy(columns)


def check_labels(what: str, x_P: Tensor | None, shape: Sequence[int]) -> None:
    """Refuse anything but one value per label."""
    if x_P is not None and x_P.shape != tuple(shape[1:]):
        raise ValueError(f"{what} must have one value per label: {tuple(x_P.shape)} for scores {tuple(shape)}")


def pairs_by_autograd(loss: Loss, s_E: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The weighted sum of a binary loss over its pairs, and its gradient."""
    with torch.enable_grad():
        s_E = s_E.detach().requires_grad_()
        value = (pairs.weight_E * loss.terms(s_E, pairs.target_E)).sum()
        (slope_E,) = torch.autograd.grad(value, s_E)
    return value.detach(), slope_E
