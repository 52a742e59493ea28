"""Embedding tables with a row per label (or per word) of which each step touches only a few rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TableOptimizer = Literal["adamw", "adagrad", "sgd"]
TINY = 1e-30  # a decay beyond everything still leaves a logarithm


class RowTable(nn.Module):
    """A matrix of rows that are looked up by id and updated only when looked up.

    Weight decay is owed by every row at every step, but paid lazily: a row pays what it owes when it is next looked up
    (or at `settle()`), so that the cost of a step does not depend on the number of rows and the values are those of
    decaying all rows at every step.

    Args:
        rows, width: shape of the matrix.
        lr: learning rate before the schedule.
        optimizer: rule of the update, see `RowOptimizer`.
    """

    weight: nn.Parameter
    paid: Tensor

    def __init__(self, rows: int, width: int, lr: float, optimizer: TableOptimizer = "adamw") -> None:
        super().__init__()
        self.lr = lr
        self.optimizer: TableOptimizer = optimizer
        self.weight = nn.Parameter(torch.empty(rows, width))
        # log of the decay that each row has paid; float32 differences telescope, so rounding does not add up
        self.register_buffer("paid", torch.zeros(rows), persistent=False)
        self.owed = 0.0

    def forward(self, ids_P: Tensor) -> Tensor:
        """rows_PD of these ids, up to date; the gradient is sparse."""
        self.settle(ids_P)
        return F.embedding(ids_P, self.weight, sparse=True)

    def owe(self, factor: float) -> None:
        """Charge every row a decay by `factor` (in (0, 1])."""
        self.owed += math.log(factor)

    @torch.no_grad()
    def settle(self, ids_P: Tensor | None = None) -> None:
        """Apply the decay that these rows (default: all) still owe."""
        if not self.owed:
            return
        if ids_P is None:
            self.weight.mul_((self.owed_now() - self.paid).exp().unsqueeze(1))
            self.paid.zero_()
            self.owed = 0.0
            return
        factor_P = (self.owed_now() - self.paid[ids_P]).exp()
        self.weight.index_copy_(0, ids_P, self.weight.index_select(0, ids_P) * factor_P.unsqueeze(1))
        self.paid.index_fill_(0, ids_P, self.owed)

    def owed_now(self) -> Tensor:
        """What is owed in the precision of what is paid."""
        return torch.full((), self.owed, dtype=self.paid.dtype, device=self.paid.device)


def merged(gradient: Tensor) -> Tensor:
    """The sparse gradient of a table with several lookups of a row added up."""
    # Sorting has no meaning on the meta device, which only follows shapes and devices.
    return gradient if gradient.is_meta else gradient.coalesce()


def rows_of(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(ids_P, g_PD) of the sparse gradient of a table, each id once."""
    gradient = merged(gradient)
    return gradient._indices()[0], gradient._values()


class RowOptimizer(torch.optim.Optimizer):
    """Updates the rows of `RowTable`s that have a gradient, and leaves the others alone.

    `adamw`: Adam with moments kept per row and advanced when the row is touched (as `torch.optim.SparseAdam` does),
    with decoupled decay. `adagrad`: one accumulator a row. `sgd`: no state.
    """

    def __init__(
        self,
        tables: Iterable[RowTable],
        decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self._tables = {table.weight: table for table in tables}
        groups = [{"params": [table.weight], "lr": table.lr} for table in self._tables.values()]
        super().__init__(groups, {"decay": decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update from the sparse gradients; a table without a gradient only owes its decay."""
        for group in self.param_groups:
            for weight in group["params"]:
                table = self._tables[weight]
                if group["decay"]:
                    table.owe(max(1.0 - group["lr"] * group["decay"], TINY))
                state = self.state[weight]
                state["step"] = state.get("step", 0) + 1
                if weight.grad is None:
                    continue
                ids_P, g_PD = rows_of(weight.grad)
                table.settle(ids_P)
                update_PD = self._update(table.optimizer, weight, state, ids_P, g_PD, group)
                weight.index_add_(0, ids_P, update_PD, alpha=-group["lr"])

    @staticmethod
    def _update(
        rule: TableOptimizer, weight: Tensor, state: dict[str, Any], ids_P: Tensor, g_PD: Tensor, group: dict[str, Any]
    ) -> Tensor:
        """Direction of the update of the touched rows; advances their state."""
        if rule == "sgd":
            return g_PD
        if rule == "adagrad":
            if "sum" not in state:
                state["sum"] = weight.new_zeros(len(weight))
            total_P: Tensor = state["sum"][ids_P] + g_PD.square().mean(dim=1)
            state["sum"].index_copy_(0, ids_P, total_P)
            scaled_PD: Tensor = g_PD / (total_P.sqrt() + group["eps"]).unsqueeze(1)
            return scaled_PD
        if "mean" not in state:
            state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
        beta1, beta2 = group["betas"]
        mean_PD: Tensor = state["mean"].index_select(0, ids_P).lerp_(g_PD, 1 - beta1)
        square_PD: Tensor = state["square"].index_select(0, ids_P).mul_(beta2).addcmul_(g_PD, g_PD, value=1 - beta2)
        state["mean"].index_copy_(0, ids_P, mean_PD)
        state["square"].index_copy_(0, ids_P, square_PD)
        correction1 = 1 - beta1 ** state["step"]
        correction2 = 1 - beta2 ** state["step"]
        spread_PD = square_PD.sqrt_().mul_(correction1 / math.sqrt(correction2)).add_(correction1 * group["eps"])
        return mean_PD.div_(spread_PD)
