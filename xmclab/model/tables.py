"""Embedding tables with a row per label (or per word) of which each step touches only a few rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xmclab.kernels.dispatch import accelerated_by, large_table
from xmclab.kernels.pages import in_large_pages, random_bits

TableOptimizer = Literal["adamw", "adagrad", "sgd", "momentum", "dense_adamw"]
TableDtype = Literal["float32", "bfloat16"]
TINY = 1e-30  # even an extreme decay leaves a factor to divide by
SMALLEST_SCALE = 2.0**-10  # rows are rescaled below it, far from where numbers lose digits
ROWS_AT_ONCE = 1 << 16  # rows that a dense update moves together

Rows = Tensor | slice  # distinct ids, or a block of neighbours
Rate = float | Tensor  # a tensor of one number where the host does not know whether anything moves


class RowTable(nn.Module):
    """A matrix of rows that are looked up by id and updated only when looked up.

    The value of a row is `scale * weight[id]`. Weight decay shrinks all rows alike, so it is one multiplication of
    `scale`: a step costs the same for any number of rows, and a row need not record the decay it missed.

    Args:
        rows, width: shape of the matrix.
        lr: learning rate before the schedule.
        optimizer: rule of the update, see `RowOptimizer`.
        dtype: of the stored numbers. Rows are looked up, and their updates computed, in float32 (or float64) and
            rounded at random to bfloat16, up or down in proportion to the distance, so that small updates add up.
        momentum: share of the velocity that the rule `momentum` keeps.
    """

    weight: nn.Parameter

    def __init__(
        self,
        rows: int,
        width: int,
        lr: float,
        optimizer: TableOptimizer = "adamw",
        dtype: TableDtype = "float32",
        momentum: float = 0.9,
    ) -> None:
        super().__init__()
        self.lr, self.momentum = lr, momentum
        self.optimizer: TableOptimizer = optimizer
        self.weight = nn.Parameter(in_large_pages(torch.empty(rows, width, dtype=getattr(torch, dtype))))
        if dtype == "bfloat16" and hasattr(self.weight, "grad_dtype"):  # older versions of torch round the gradient
            self.weight.grad_dtype = torch.float32
        self.scale = 1.0
        self.folded = 0.0  # log2 of all that `settle` has multiplied the weight by
        self._gradients: list[tuple[Tensor, Tensor]] = []  # of the lookups since the latest update
        self._distinct = True  # each id is once in them

    def forward(self, ids_P: Tensor, distinct: bool = False) -> Tensor:
        """rows_PD of these ids, in at least float32. Their gradient goes to `gradient`, not to `weight.grad`.

        Args:
            distinct: a promise that no id is there twice, which saves a look on other devices than the CPU.
        """
        rows_PD: Tensor = _Lookup.apply(self.weight, self, ids_P, distinct)  # type: ignore[no-untyped-call]
        return rows_PD

    def add_gradient(self, ids_P: Tensor, g_PD: Tensor, distinct: bool) -> None:
        """For the backward pass of a lookup: take the gradient of the values of some rows."""
        self._distinct = distinct and not self._gradients
        self._gradients.append((ids_P, g_PD))
        if len(self._gradients) > 1 and ids_P.device.type == "cpu":
            self.gradient()  # now that both are in the cache, and nobody waits for it

    def gradient(self) -> tuple[Tensor, Tensor] | None:
        """(ids_P, g_PD) of the rows that were looked up since the latest update, each once; None if none was."""
        if not self._distinct:
            self._gradients, self._distinct = [merged(self._gradients)], True
        return self._gradients[0] if self._gradients else None

    def forget_gradient(self) -> None:
        """Clear what `gradient` returns."""
        self._gradients, self._distinct = [], True

    def decay(self, factor: float) -> None:
        """Multiply every row by `factor` (in (0, 1])."""
        self.scale *= max(factor, TINY)
        if self.scale < SMALLEST_SCALE:
            self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Make `weight` hold the values of the rows."""
        if self.scale != 1.0:
            self.weight.mul_(self.scale)
            self.folded += math.log2(self.scale)
            self.scale = 1.0


class _Lookup(torch.autograd.Function):
    """scale * weight[ids]; as the gradient of the weight would be sparse, the table takes that of the product."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, table: RowTable, ids_P: Tensor, distinct: bool) -> Tensor:
        ctx.table, ctx.distinct = table, distinct
        ctx.save_for_backward(ids_P)
        return gather(weight, ids_P, table.scale)

    @staticmethod
    def backward(ctx: Any, g_PD: Tensor) -> tuple[None, None, None, None]:
        ctx.table.add_gradient(*ctx.saved_tensors, g_PD, ctx.distinct)
        return None, None, None, None


def gather(weight: Tensor, ids_P: Tensor, scale: float) -> Tensor:
    """scale * weight[ids], in at least float32."""
    rows_PD = widened(weight.index_select(0, ids_P))
    return rows_PD if scale == 1.0 else rows_PD.mul_(scale)


def merged(gradients: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(ids, g) of several lookups, or of one that may have an id twice, with the gradients of each id added up."""
    if gradients[0][0].is_meta:  # only follows shapes and devices
        return gradients[0]
    if all(_ascend(ids_P) for ids_P, _ in gradients):
        return gradients[0] if len(gradients) == 1 else _merged_ascending(gradients)
    ids_T, g_TD = map(torch.cat, zip(*gradients, strict=True))
    ids_P, place_T = ids_T.unique(return_inverse=True)  # other devices than the CPU are waited for
    return ids_P, g_TD.new_zeros(len(ids_P), g_TD.shape[1]).index_add_(0, place_T, g_TD)


def _ascend(ids_P: Tensor) -> bool:
    """Whether ids ascend, on a CPU, where looking costs little."""
    return ids_P.device.type == "cpu" and bool((ids_P.numpy()[1:] > ids_P.numpy()[:-1]).all())


def _merged_ascending(gradients: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Torch merges sorted lists of rows in one pass, if they are called sparse tensors."""
    shape = 1 + max(int(ids_P[-1]) if len(ids_P) else 0 for ids_P, _ in gradients), gradients[0][1].shape[1]
    each = (
        torch.sparse_coo_tensor(ids_P.unsqueeze(0), g_PD, shape, is_coalesced=True, check_invariants=False)
        for ids_P, g_PD in gradients
    )
    total = reduce(torch.add, each)
    return total._indices()[0], total._values()


def gradients_of(tables: Iterable[RowTable]) -> list[Tensor]:
    """The gradients of the rows that were looked up."""
    return [gradient[1] for table in tables if (gradient := table.gradient()) is not None]


class RowOptimizer(torch.optim.Optimizer):
    """Updates the rows of `RowTable`s that have a gradient, and leaves the others alone.

    `adamw`: Adam with moments kept per row and advanced when the row is touched (as `torch.optim.SparseAdam` does),
    with decoupled decay. `adagrad`: one accumulator a row. `sgd`: no state. `momentum`: SGD with a velocity that is
    advanced when the row is touched. `dense_adamw` is the exception: as `torch.optim.AdamW` does, it advances the
    moments of all rows at every step, so that rows go on moving after they were touched, at the cost of a pass over
    the table. State is in at least float32. Bytes of a row of d numbers, weight included: 12 d (both kinds of Adam),
    4 d + 4 (adagrad), 4 d (sgd) and 8 d (momentum); 2 d less in bfloat16.
    """

    def __init__(
        self,
        tables: Iterable[RowTable],
        decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self._tables = {table.weight: table for table in tables}
        self._updated_ahead: set[Tensor] = set()
        self.moves: Tensor | None = None  # 1, or 0 where no number may move; None: all do
        groups = [{"params": [table.weight], "lr": table.lr} for table in self._tables.values()]
        super().__init__(groups, {"decay": decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of the rows that have a gradient; a table without one only decays."""
        for group in self.param_groups:
            for weight in group["params"]:
                table, state = self._tables[weight], self.state[weight]
                if weight not in self._updated_ahead:
                    table.decay(self._decay_factor(group))
                    if (gradient := table.gradient()) is not None:
                        self._update(group, table, state, *gradient, 1.0)
                state["step"] = state.get("step", 0) + 1
        self._updated_ahead.clear()

    @torch.no_grad()
    def update_block(self, table: RowTable, block: slice, g_BD: Tensor) -> None:
        """Update neighbouring rows of a settled table ahead of `step`, which then leaves the table alone.

        For gradients that are too large to exist as a whole: every row must be in one block of the step.
        """
        assert table.scale == 1.0, "settle the table first"
        group = next(group for group in self.param_groups if group["params"][0] is table.weight)
        self._updated_ahead.add(table.weight)
        self._update(group, table, self.state[table.weight], block, g_BD, self._decay_factor(group))

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for table in self._tables.values():
            table.forget_gradient()

    @staticmethod
    def _decay_factor(group: dict[str, Any]) -> float:
        return max(1.0 - float(group["lr"]) * float(group["decay"]), TINY)

    def _update(
        self, group: dict[str, Any], table: RowTable, state: dict[str, Any], rows: Rows, g_PD: Tensor, decay: Rate
    ) -> None:
        weight, g_PD = table.weight, widened(g_PD)
        lr: Any = group["lr"] / table.scale
        momentum: Any = table.momentum
        beta1, beta2 = group["betas"]
        weight1, weight2 = 1 - beta1, 1 - beta2
        if self.moves is not None:  # rates of 0 leave every number as it is, once the gradient is finite
            g_PD = torch.where(self.moves > 0, g_PD, 0)
            lr, weight1, weight2 = lr * self.moves, weight1 * self.moves, weight2 * self.moves
            decay, momentum, beta2 = (1 - (1 - kept) * self.moves for kept in (decay, momentum, beta2))
        if table.optimizer == "sgd":
            add(weight, rows, g_PD, decay, filled(g_PD, -lr))
        elif table.optimizer == "adagrad":
            if "sum" not in state:
                state["sum"] = g_PD.new_zeros(len(weight))
            total_P = add_mean_squares(state["sum"], rows, g_PD)
            add(weight, rows, g_PD, decay, -lr / (total_P.sqrt() + group["eps"]))
        elif table.optimizer == "momentum":
            if "velocity" not in state:
                state["velocity"] = in_large_pages(g_PD.new_empty(len(weight), g_PD.shape[1])).zero_()
            velocity_PD = read(state["velocity"], rows).mul_(momentum).add_(g_PD)
            write(state["velocity"], rows, velocity_PD)
            add(weight, rows, velocity_PD, decay, filled(g_PD, -lr))
        else:
            if "moments" not in state:  # side by side, so that a row of both is one place in memory
                state["moments"] = in_large_pages(g_PD.new_empty(len(weight), 2, g_PD.shape[1])).zero_()
            step = state.get("step", 0) + 1
            correction1, correction2 = 1 - beta1**step, math.sqrt(1 - group["betas"][1] ** step)
            rates = weight1, beta2, weight2, correction2 * group["eps"]
            parts: Iterable[tuple[Rows, Tensor]] = [(rows, g_PD)]
            if table.optimizer == "dense_adamw" and isinstance(rows, Tensor):
                parts = _blocks(rows, g_PD, len(weight))
            for part, g_BD in parts:
                add_by_moments(weight, state["moments"], part, g_BD, rates, decay, -lr * correction2 / correction1)


def _blocks(ids_P: Tensor, g_PD: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """The gradient of a whole table, block after block, from that of some of its rows."""
    for start in range(0, rows, ROWS_AT_ONCE):
        block = slice(start, min(start + ROWS_AT_ONCE, rows))
        size = block.stop - block.start
        place_P = torch.where((ids_P >= start) & (ids_P < block.stop), ids_P - start, size)
        yield block, g_PD.new_zeros(size + 1, g_PD.shape[1]).index_copy_(0, place_P, g_PD)[:size]  # others fall off


@accelerated_by("tables", when=lambda total, rows, g_PD: large_table(g_PD))
def add_mean_squares(total: Tensor, rows: Rows, g_PD: Tensor) -> Tensor:
    """Add the mean squares of these rows to their totals, which are returned."""
    squares_PD = g_PD.square()
    while (width := squares_PD.shape[1]) > 1:  # half and half, so that compiled loops can add in the same order
        half = (width + 1) // 2
        squares_PD[:, : width - half] += squares_PD[:, half:]
        squares_PD = squares_PD[:, :half]
    total_P = read(total, rows).add_(squares_PD[:, 0] / g_PD.shape[1])
    write(total, rows, total_P)
    return total_P


@accelerated_by("tables", when=large_table)
def add(weight: Tensor, rows: Rows, direction_PD: Tensor, decay: Rate, factor_P: Tensor) -> None:
    """weight[rows] = decay * weight[rows] + factor * direction"""
    rows_PD = read(weight, rows)
    values_PD = widened(rows_PD).mul_(decay).add_(direction_PD * factor_P.unsqueeze(1))
    write(weight, rows, rows_PD.copy_(rounded_at_random(values_PD)) if weight.dtype == torch.bfloat16 else values_PD)


@accelerated_by("tables", when=large_table)
def add_by_moments(
    weight: Tensor,
    moments: Tensor,
    rows: Rows,
    g_PD: Tensor,
    rates: tuple[Rate, Rate, Rate, float],
    decay: Rate,
    factor: Rate,
) -> None:
    """Advance the moments of these rows by the rates 1 - beta1, beta2, 1 - beta2; `add` mean / (root + eps)."""
    weight1, beta2, weight2, eps = rates
    moments_P2D = read(moments, rows)
    mean_PD, square_PD = moments_P2D.unbind(1)
    mean_PD.lerp_(g_PD, weight1.to(g_PD) if isinstance(weight1, Tensor) else weight1)
    if isinstance(weight2, Tensor):
        square_PD.mul_(beta2).addcmul_(g_PD * weight2, g_PD)
    else:
        square_PD.mul_(beta2).addcmul_(g_PD, g_PD, value=weight2)
    write(moments, rows, moments_P2D)
    spread_PD = square_PD.sqrt().add_(eps)
    direction_PD = torch.div(mean_PD, spread_PD, out=spread_PD)
    add(weight, rows, direction_PD, decay, filled(g_PD, factor))


def filled(g_PD: Tensor, factor: Rate) -> Tensor:
    """[P] the same factor for all rows."""
    return factor.to(g_PD).expand(len(g_PD)) if isinstance(factor, Tensor) else g_PD.new_full((len(g_PD),), factor)


def read(table: Tensor, rows: Rows) -> Tensor:
    """These rows: a copy of listed ones, a view of a block."""
    return table[rows] if isinstance(rows, slice) else table.index_select(0, rows)


def write(table: Tensor, rows: Rows, values: Tensor) -> None:
    """Put back what `read` gave; a view was changed in place."""
    if isinstance(rows, Tensor):
        table.index_copy_(0, rows, values)


def widened(x: Tensor) -> Tensor:
    """The numbers in float32, or unchanged if at least that precise."""
    return x.float() if x.dtype == torch.bfloat16 else x


def rounded_at_random(x: Tensor) -> Tensor:
    """float32 numbers in bfloat16: up or down with the probability that makes the mean exact. Overwrites `x`.

    bfloat16 is the upper half of a float32: a random number below the last kept bit is added, and the rest cut off.
    """
    x.view(torch.int32).add_(random_bits(x).int().bitwise_and_(0xFFFF)).bitwise_and_(-(1 << 16))
    return x.to(torch.bfloat16)
