"""Optimizers of a model: AdamW for dense parameters, row updates for tables, one schedule for both."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from xmclab.api import Encoder, Head
from xmclab.host.schema import OptimSettings
from xmclab.model.model import Model
from xmclab.model.tables import RowOptimizer, gradients_of
from xmclab.training.batches import Part
from xmclab.training.streaming import StreamedRows

Factor = Callable[[int], float]  # of the learning rate, by step


class HostState(NamedTuple):
    """What the host advances in a step of the optimizers, whether or not anything moves on the device."""

    updates: int
    steps: list[int]  # of each table
    scales: list[tuple[float, float]]  # of each table, with what was folded into its weight before
    previous: Tensor | None = None  # factor by which streamed tables are clipped, see `StreamedRows`


def schedule_factor(schedule: str, warmup: float, steps: int, steps_per_epoch: int) -> Factor:
    """The learning-rate factor of each step: linear warm-up from near 0 to 1, then the chosen schedule."""
    warmup *= steps if warmup < 1 else steps_per_epoch

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min((step - warmup) / max(steps - warmup, 1), 1.0)
        if schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1 - done if schedule == "linear" else 1.0

    return factor


class Optimizers:
    """The two optimizers of a run and their schedules, stepped as one. Frozen parameters are in neither."""

    def __init__(self, model: Model, settings: OptimSettings, steps: int, steps_per_epoch: int) -> None:
        self.max_norm = settings.clip
        self.sound: Tensor | None = None  # on the device: nothing moves unless it is true; None: the host looks first
        self._factor: Tensor | None = None  # clipping factor of this step
        self._named = {id(parameter): name for name, parameter in model.named_parameters()}
        self._no_decay = settings.no_decay
        self._tables = tables = [table for table in model.tables() if table.weight.requires_grad]
        rows = {id(table.weight) for table in model.tables()}

        def groups(module: torch.nn.Module, lr: float) -> list[dict[str, Any]]:
            trained = [p for p in module.parameters() if p.requires_grad and id(p) not in rows]
            free = [p for p in trained if self._spared(p)]
            decayed = {"params": [p for p in trained if not self._spared(p)], "lr": lr}
            return [decayed, *([{"params": free, "lr": lr, "weight_decay": 0.0}] if free else [])]

        parts: list[Encoder | Head] = [model.encoder, *map(model.head, model.head_names)]
        dense = [group for part in parts for group in groups(part, part.lr) if group["params"]]
        self._all: list[torch.optim.Optimizer] = []
        schedule = schedule_factor(settings.schedule, settings.warmup, steps, steps_per_epoch)
        self._factors: list[list[Factor]] = []  # of each optimizer and group
        if dense:
            fused = model.device.type in ("cuda", "cpu")
            self._all.append(torch.optim.AdamW(dense, weight_decay=settings.decay, fused=fused))
            self._factors.append([schedule] * len(dense))
        self.rows: StreamedRows | None = None
        if tables:
            optimizer = RowOptimizer(tables, decay=settings.decay)
            for group in optimizer.param_groups:
                if self._spared(group["params"][0]):
                    group["decay"] = 0.0
            self.rows = StreamedRows(optimizer, settings.clip > 0, settings.clip_tables == "previous")
            self._all.append(optimizer)
            own = settings.schedule if settings.table_schedule == "same" else settings.table_schedule
            warmup = settings.warmup if settings.table_warmup is None else settings.table_warmup
            of_heads = schedule_factor(own, warmup, steps, steps_per_epoch)
            in_heads = {*map(id, model.heads.parameters())}
            self._factors.append([of_heads if id(table.weight) in in_heads else schedule for table in tables])
        self._schedules = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, list(factors))
            for optimizer, factors in zip(self._all, self._factors, strict=True)
        ]
        self.updates = 0

    def _spared(self, parameter: Tensor) -> bool:
        """Whether a parameter is exempt from decay."""
        return any(part in self._named[id(parameter)] for part in self._no_decay)

    def clip(self) -> Tensor:
        """Clip the norm of the whole gradient; returns the norm before clipping."""
        gradients = self._gradients()
        norm = torch.nn.utils.get_total_norm(
            [*gradients, *(self.rows.norms() if self.rows and self.rows.steps else [])]
        )
        if self.max_norm:
            self._factor = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
            if gradients:
                torch._foreach_mul_(gradients, self._factor)
        return norm

    def watch(self, numbers: Tensor) -> None:
        """Move nothing from now on if one of these is not finite. The host need not know, and does not wait."""
        sound = numbers.isfinite().all()
        self.sound = sound if self.sound is None else self.sound & sound
        for optimizer in self._all:
            if isinstance(optimizer, RowOptimizer):
                optimizer.moves = self.sound.double()
            else:
                optimizer.found_inf = self.sound.logical_not().float()  # type: ignore[attr-defined]

    def step(self, part: Part = contextlib.nullcontext) -> None:
        """Update, advance the schedule, clear the gradients."""
        if self.rows and self.rows.steps:
            with part("table update"):
                self.rows.finish(self._factor)
                self.rows.previous = self._factor
        for optimizer, schedule in zip(self._all, self._schedules, strict=True):
            with part("table update" if isinstance(optimizer, RowOptimizer) else "optimizer"):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
        self.updates += 1

    def states(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """The state of every parameter that was updated."""
        for optimizer in self._all:
            yield from optimizer.state.items()

    def load(self, parameter: Tensor, state: Mapping[str, Any]) -> None:
        """Give a parameter the state that `states` had of it."""
        optimizer = next(o for o in self._all if any(parameter is p for g in o.param_groups for p in g["params"]))
        optimizer.state[parameter] = dict(state)

    def host_state(self) -> HostState:
        """To return to by `rewind`."""
        steps = [state.get("step", 0) for state in self._row_states()]
        scales = [(table.scale, table.folded) for table in self._tables]
        return HostState(self.updates, steps, scales, self.rows.previous if self.rows else None)

    def _row_states(self) -> list[dict[str, Any]]:
        """The state of each table."""
        return [self.rows.optimizer.state[table.weight] for table in self._tables] if self.rows else []

    def rewind(self, state: HostState) -> None:
        """Return to an earlier state, after steps in which nothing has moved on the device."""
        self.discard()
        for of_rows, step in zip(self._row_states(), state.steps, strict=True):
            of_rows["step"] = step
        for table, (scale, folded) in zip(self._tables, state.scales, strict=True):
            table.scale = scale * 2.0 ** (folded - table.folded)  # the weight holds what was folded in since
        if self.rows:
            self.rows.previous = state.previous
        self.resume(state.updates)

    @property
    def clips_by(self) -> float | None:
        """The factor by which the next step clips streamed tables, if that is the one of the step before."""
        previous = self.rows.previous if self.rows and self.rows.by_previous else None
        return None if previous is None else float(previous)

    def resume(self, updates: int, clips_by: float | None = None) -> None:
        """Continue the schedule after this many updates, and the clipping of streamed tables by this factor."""
        self.updates = updates
        if self.rows and clips_by is not None:
            self.rows.previous = torch.tensor(clips_by, device=self.rows.optimizer.param_groups[0]["params"][0].device)
        for optimizer, schedule, factors in zip(self._all, self._schedules, self._factors, strict=True):
            schedule.last_epoch, schedule._step_count = updates, updates + 1
            for group, rate, factor in zip(optimizer.param_groups, schedule.base_lrs, factors, strict=True):
                group["lr"] = rate * factor(updates)

    @property
    def untouched(self) -> bool:
        """Whether the current step has not updated anything yet, so that it can be repeated."""
        return not (self.rows and self.rows.updated)

    def discard(self) -> None:
        """Drop the gradients of a step."""
        if self.rows:
            self.rows.forget()
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)

    def _gradients(self) -> list[Tensor]:
        """Those of dense parameters, and of the rows of tables that were looked up."""
        parameters = (p for optimizer in self._all for group in optimizer.param_groups for p in group["params"])
        return [*(p.grad for p in parameters if p.grad is not None), *gradients_of(self._tables)]
