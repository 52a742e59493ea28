"""The passes of the engine by the kernels of a plugin, which never write scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from xmclab.api import Block, Kernels
from xmclab.objectives.engine import Engine
from xmclab.objectives.scores import Scores
from xmclab.objectives.truth import Truth

if TYPE_CHECKING:
    from xmclab.objectives.objective import Direction


def unfused(directions: Sequence[Direction]) -> str:
    """Why kernels do not compute these directions; empty: they do."""
    if len({direction.temperature for direction in directions}) > 1:
        return "its losses have several temperatures"
    others = [d.term.name for d in directions if d.term.binary and not d.term.has_softplus_negatives]
    return f"the negatives of loss {others[0]!r} do not cost log(1 + exp s)" if others else ""


class FusedEngine(Engine):
    """The same values and gradients, for directions that are not `unfused` and scores that have `operands`.

    The gradient of a block exists in the dtype of the operands; its scores never do.
    """

    writes = False

    def __init__(
        self,
        kernels: Kernels,
        scores: Scores,
        truth: Truth,
        directions: Sequence[Direction],
        label_weight_P: Tensor | None = None,
        share: float = 1.0,
    ) -> None:
        super().__init__(scores, truth, directions, label_weight_P, share)
        self.kernels = kernels
        (self.group,) = self.groups.values()
        self.row_C = torch.cat([truth.row_E, truth.ignored_row_I])
        self.column_C = torch.cat([truth.column_E, truth.ignored_column_I])

    def observe(self) -> None:
        group = self.group
        if not group.competes:
            return
        for block in self.blocks:
            log_sum_Q, log_sum_B, s_C = self.kernels.log_sums(self._block(block), group.by_label)
            group.log_sum_Q = torch.logaddexp(group.log_sum_Q, log_sum_Q)
            if log_sum_B is not None:
                group.log_sum_P[block] = log_sum_B
            self._keep(block, s_C)
        self.gradient_E = self._close()

    def backward(self) -> None:
        group, softplus = self.group, self.group.of_softplus if self.group.softplus else None
        for block in self.blocks:
            queries = (group.log_sum_Q, group.slope_Q) if group.competes else None
            labels = (group.log_sum_P[block], group.slope_P[block]) if group.by_label else None
            g_QB, value, s_C = self.kernels.gradient(self._block(block), queries, labels, softplus)
            if not group.competes:  # binary terms need only the scores of this block
                self._keep(block, s_C)
                self.gradient_E = self._close()
            self._add(group.softplus, value)
            self._write_pairs(block, g_QB)
            self.scores.backward(block, g_QB)

    def _block(self, block: slice) -> Block:
        scale = 1 / self.directions[0].temperature
        return Block(*self.scores.operands(block), scale, self.row_C, self.column_C - block.start)

    def _keep(self, block: slice, s_C: Tensor) -> None:
        """Take the scores of the positives of a block."""
        self.s_E = torch.where(self._within(block), s_C[: len(self.s_E)], self.s_E)

    def _within(self, block: slice) -> Tensor:
        column_E = self.truth.column_E
        return column_E.ge(block.start) & column_E.lt(block.stop)

    def _write_pairs(self, block: slice, g_QB: Tensor) -> None:
        """Write the gradient at the positives, where the kernels have left 0."""
        within_E = self._within(block)
        at_E = self.truth.row_E * g_QB.shape[1] + (self.truth.column_E - block.start)
        # Pairs of other blocks add 0 to the first cell: the length of a list on the device is not asked for.
        found_E = self.gradient_E.masked_fill(~within_E, 0).to(g_QB.dtype)
        g_QB.view(-1).index_add_(0, at_E.masked_fill(~within_E, 0), found_E)
