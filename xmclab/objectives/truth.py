"""The known pairs of a score matrix, as short lists instead of matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Batch


@dataclass(frozen=True)
class Truth:
    """The positives of anchors among candidates, and the pairs that are neither positive nor negative.

    Counts are kept on the host, so that nothing has to be read back from the device.
    """

    shape: tuple[int, int]  # anchors, candidates
    row_E: Tensor
    column_E: Tensor
    target_E: Tensor  # > 0
    ignored_row_I: Tensor
    ignored_column_I: Tensor
    most_per_row: int  # largest number of positives of an anchor (at least 1)
    most_per_column: int
    inverse_propensity_E: Tensor | None = None  # for the label of each pair

    @staticmethod
    def of_batch(batch: Batch, device: torch.device | str) -> Truth:
        """The truth of a batch, on the device of its scores."""
        return Truth.of_lists((len(batch.rows_Q), len(batch.labels_P)), batch.positives, batch.ignored, device)

    @staticmethod
    def of_lists(
        shape: tuple[int, int],
        positives: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]],
        ignored: tuple[NDArray[np.int64], NDArray[np.int64]],
        device: torch.device | str,
    ) -> Truth:
        """The truth from host lists: (row, column, target) of positives, (row, column) of ignored pairs."""
        rows, columns, targets = (torch.from_numpy(part).to(device) for part in positives)
        ignored_rows, ignored_columns = (torch.from_numpy(part).to(device) for part in ignored)
        per_row, per_column = (int(np.bincount(where).max(initial=1)) for where in positives[:2])
        return Truth(shape, rows, columns, targets, ignored_rows, ignored_columns, per_row, per_column)

    @staticmethod
    def of_matrix(y_QP: Tensor, ignore_QP: Tensor | None = None) -> Truth:
        """The truth from a matrix of targets (0: negative) and a mask of ignored pairs."""
        known_QP = y_QP if ignore_QP is None else y_QP.masked_fill(ignore_QP, 0)
        row_E, column_E = known_QP.nonzero(as_tuple=True)
        ignored_row_I, ignored_column_I = (row_E[:0], row_E[:0])
        if ignore_QP is not None:
            ignored_row_I, ignored_column_I = ignore_QP.nonzero(as_tuple=True)
        positive_QP = known_QP != 0
        per_row, per_column = (int(positive_QP.sum(dim=dim).amax()) if len(row_E) else 1 for dim in (1, 0))
        shape, target_E = (y_QP.shape[0], y_QP.shape[1]), known_QP[row_E, column_E]
        return Truth(shape, row_E, column_E, target_E, ignored_row_I, ignored_column_I, per_row, per_column)

    def with_propensities(self, inverse_propensity_P: Tensor | None) -> Truth:
        """The same truth with inverse propensities of the candidates, which must be labels."""
        if inverse_propensity_P is None:
            return self
        return replace(self, inverse_propensity_E=inverse_propensity_P[self.column_E])

    @cached_property
    def transposed(self) -> Truth:
        """The same pairs with anchors and candidates swapped."""
        return Truth(
            (self.shape[1], self.shape[0]),
            self.column_E,
            self.row_E,
            self.target_E,
            self.ignored_column_I,
            self.ignored_row_I,
            self.most_per_column,
            self.most_per_row,
            self.inverse_propensity_E,
        )

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """y_QP: targets, 0 where a pair is not a positive."""
        y_QP = torch.zeros(self.shape, dtype=dtype, device=self.row_E.device)
        return y_QP.index_put_((self.row_E, self.column_E), self.target_E.to(dtype))

    def hide_ignored(self, s_QP: Tensor, value: float) -> Tensor:
        """Overwrite the scores of ignored pairs."""
        at = self.ignored_row_I, self.ignored_column_I
        return s_QP.index_put_(at, s_QP.new_full((), value)) if len(self.ignored_row_I) else s_QP

    def compact(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(y_QM, place_E): the targets of each row packed to the left, and the cell of `y_QM` of each pair."""
        y_QM = torch.zeros(self.shape[0], self.most_per_row, dtype=dtype, device=self.row_E.device)
        y_QM.view(-1).index_copy_(0, self._place_E, self.target_E.to(dtype))
        return y_QM, self._place_E

    @cached_property
    def _place_E(self) -> Tensor:
        """Row by row, each pair in the next cell of its row: computed once for all terms and heads."""
        order_E = self.row_E.argsort(stable=True)
        ones_E = torch.ones_like(self.row_E)
        count_Q = self.row_E.new_zeros(self.shape[0]).index_add_(0, self.row_E, ones_E)
        start_Q = count_Q.cumsum(0) - count_Q
        rank_E = torch.arange(len(self.row_E), device=self.row_E.device) - start_Q[self.row_E[order_E]]
        return self.row_E * self.most_per_row + torch.empty_like(rank_E).index_copy_(0, order_E, rank_E)
