"""Where the time of a run goes (`profile=true`): parts of steps, what is between and beside them.

Off, a part costs nothing and nothing waits; on, a part ends when the device is done with it, so that every one is
charged for its own work. The numbers of a run are the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

STEP = "step"  # all of a step but the wait for its batch
PLAN_WAIT = "plan wait"
OF_A_STEP = (
    PLAN_WAIT,
    "to device",
    "encode forward",
    "scores and losses",
    "encode backward",
    "clip and check",
    "table update",
    "optimizer",
)
BETWEEN_STEPS = ("refresh", "evaluation")
BESIDE_STEPS = ("plan", "collate")  # in the thread that prepares the next batch

Part = Callable[[str], contextlib.AbstractContextManager[None]]
_NOTHING = contextlib.nullcontext()


def unprofiled(name: str) -> contextlib.AbstractContextManager[None]:
    """A part whose time nobody wants to know."""
    return _NOTHING


class Profile:
    """Adds up the seconds of the parts of a run; parts of a step do not overlap."""

    def __init__(self, device: torch.device, on: bool = True) -> None:
        self.on = on
        self.steps = 0
        self.seconds = dict.fromkeys((STEP, *OF_A_STEP, *BETWEEN_STEPS, *BESIDE_STEPS), 0.0)
        self.part: Part = self._timed if on else unprofiled
        self._device = device

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        on_device = name not in BESIDE_STEPS
        if on_device:
            self._synchronise()
        started = time.perf_counter()
        yield
        if on_device:
            self._synchronise()
        self.seconds[name] += time.perf_counter() - started
        self.steps += name == STEP

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def summary(self) -> dict[str, Any]:
        """Milliseconds per step and share of the whole, for each part; those beside the steps are no share of it."""
        named = {name: self.seconds[name] for name in OF_A_STEP}
        named["other"] = self.seconds[STEP] + self.seconds[PLAN_WAIT] - sum(named.values())
        named |= {name: self.seconds[name] for name in BETWEEN_STEPS}
        whole, steps = max(sum(named.values()), 1e-9), max(self.steps, 1)
        return {
            "steps": self.steps,
            "ms_per_step": 1e3 * (self.seconds[STEP] + self.seconds[PLAN_WAIT]) / steps,
            "parts": {name: {"ms": 1e3 * value / steps, "share": value / whole} for name, value in named.items()},
            "beside": {name: {"ms": 1e3 * self.seconds[name] / steps} for name in BESIDE_STEPS},
        }

    def print_table(self, console: Console) -> None:
        """The summary, for people."""
        summary = self.summary()
        title = f"where the time went: {summary['steps']} steps of {summary['ms_per_step']:.1f} ms"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
        table.add_column("part", no_wrap=True)
        for column in ("ms per step", "share"):
            table.add_column(column, justify="right", no_wrap=True)
        for name, part in summary["parts"].items():
            table.add_row(name, f"{part['ms']:.2f}", f"{100 * part['share']:.1f} %")
        table.add_section()
        for name, part in summary["beside"].items():
            table.add_row(f"{name}, in a thread", f"{part['ms']:.2f}", "")
        console.print(table)
