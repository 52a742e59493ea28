"""The state of training between two steps: what a checkpoint holds, and nothing that can be computed again.

Rows of tables are apart from other tensors, so that they can be written in ranges of rows. Draws need no state: they
come from keys. The view and what was mined from it change at refreshes only; neither is changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import View
from xmclab.model.tables import RowTable
from xmclab.training.trainer import Trainer

VIEW, MINED, PLAN = "view.", "mined.", "plan."  # prefixes of arrays


@dataclass(frozen=True)
class TrainingState:
    """References to the tensors of a trainer, by name."""

    dense: Mapping[str, Tensor]  # parameters, buffers, state of their optimizer
    tables: Mapping[str, Mapping[str, Tensor]]  # table -> kind (`weight`, `moments`, ...) -> rows
    numbers: Mapping[str, Any]  # JSON values

    @property
    def bytes(self) -> int:
        """The size of all tensors."""
        rows = (tensor for table in self.tables.values() for tensor in table.values())
        return sum(tensor.nbytes for tensor in (*self.dense.values(), *rows))


@dataclass(frozen=True)
class Refreshed:
    """What the latest refresh left; the same object until the next one."""

    epoch: int
    arrays: Mapping[str, NDArray[Any]]
    batch: int = 0  # batches of the epoch before it

    @property
    def name(self) -> str:
        return f"refresh-{self.epoch:06d}" + (f"-{self.batch:09d}" if self.batch else "")


def state_of(trainer: Trainer) -> TrainingState:
    """The current state, without a copy."""
    named = {id(table): name for name, table in trainer.model.named_modules() if isinstance(table, RowTable)}
    by_weight = {id(table.weight): (named[id(table)], table) for table in trainer.model.tables()}
    dense: dict[str, Tensor] = {}
    tables: dict[str, dict[str, Tensor]] = {name: {} for name in named.values()}
    numbers: dict[str, Any] = {"updates": trainer.optimizers.updates, "tables": {}}
    if (factor := trainer.optimizers.clips_by) is not None:
        numbers["clips_by"] = factor
    for name, tensor in trainer.model.state_dict(keep_vars=True).items():
        if id(tensor) in by_weight:
            owner, table = by_weight[id(tensor)]
            tables[owner]["weight"] = tensor.detach()
            numbers["tables"][owner] = {"scale": table.scale}
        else:
            dense[f"model.{name}"] = tensor.detach()
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    for parameter, state in trainer.optimizers.states():
        owner = by_weight[id(parameter)][0] if id(parameter) in by_weight else ""
        for key, value in state.items():
            if not isinstance(value, Tensor):
                numbers["tables"][owner][key] = value
            elif owner:
                tables[owner][key] = value
            else:
                dense[f"optimizer.{names[id(parameter)]}.{key}"] = value
    return TrainingState(dense, tables, numbers)


def load_state(trainer: Trainer, state: TrainingState) -> None:
    """Give a new trainer this state.

    Raises:
        ValueError: the tensors are not those of this model.
    """
    tables = {name: table for name, table in trainer.model.named_modules() if isinstance(table, RowTable)}
    if tables.keys() != state.tables.keys():
        raise ValueError(f"its tables are {', '.join(state.tables)}, those of the model are {', '.join(tables)}")
    weights = {f"{name}.weight": rows["weight"] for name, rows in state.tables.items()}
    weights |= {name.removeprefix("model."): t for name, t in state.dense.items() if name.startswith("model.")}
    trainer.model.load_state_dict(weights)
    for name, table in tables.items():
        table.scale = float(state.numbers["tables"][name]["scale"])
    parameters = dict(trainer.model.named_parameters())
    found: dict[str, dict[str, Any]] = {}
    for name, tensor in state.dense.items():
        if name.startswith("optimizer."):
            owner, _, key = name.removeprefix("optimizer.").rpartition(".")
            found.setdefault(owner, {})[key] = tensor
    for name, rows in state.tables.items():
        own = {key: tensor for key, tensor in rows.items() if key != "weight"}
        own |= {key: value for key, value in state.numbers["tables"][name].items() if key != "scale"}
        if own:  # a frozen table has none
            found[f"{name}.weight"] = own
    for name, values in found.items():
        trainer.optimizers.load(parameters[name], values)
    trainer.optimizers.resume(int(state.numbers["updates"]), state.numbers.get("clips_by"))


def refreshed(trainer: Trainer) -> Refreshed | None:
    """The view, if the sampler or a miner without state of its own needs it again, and what was mined.

    After a refresh within an epoch, also the plan of that epoch, if it was made from the view before.
    """
    view = trainer.view
    if view is None:
        return None
    mined = trainer.miner.state() if trainer.mines else None
    arrays = {f"{MINED}{name}": array for name, array in (mined or {}).items()}
    if trainer.sampler.needs_view or (trainer.mines and mined is None):
        arrays |= {f"{VIEW}queries": view.queries_ND, f"{VIEW}labels": view.labels_LD}
    if trainer.sampler.needs_view and view.batch:
        plans = [plan for plan in (trainer.planned, trainer.resumed) if plan and plan[0] == view.epoch]
        _, batches = plans[0]
        arrays |= {f"{PLAN}rows": np.concatenate(batches), f"{PLAN}sizes": np.array(list(map(len, batches)))}
    return Refreshed(view.epoch, arrays, view.batch)


def load_refreshed(trainer: Trainer, latest: Refreshed) -> None:
    """Give a new trainer the view, and its miner what was mined."""
    empty = np.zeros((0, 0), dtype=np.float32)
    queries_ND, labels_LD = (latest.arrays.get(f"{VIEW}{side}", empty) for side in ("queries", "labels"))
    mined = {name.removeprefix(MINED): a for name, a in latest.arrays.items() if name.startswith(MINED)}
    trainer.see(View(latest.epoch, queries_ND, labels_LD, str(trainer.device), latest.batch), mined or None)
    if f"{PLAN}rows" in latest.arrays:
        ends = np.cumsum(latest.arrays[f"{PLAN}sizes"])
        trainer.resumed = latest.epoch, np.split(latest.arrays[f"{PLAN}rows"], ends[:-1])


def as_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Arrays as tensors that share their memory."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
