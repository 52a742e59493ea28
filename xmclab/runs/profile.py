"""Where the time of a run goes (`profile=true`): in steps, between them and in the background.

When off, there is no overhead. When on, each part waits for the device, so that it is charged for its own work. Results
do not change.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from xmclab.training.batches import Part

STEP = "step"  # a whole step except the wait for its batch
PLAN_WAIT = "plan wait"
OF_A_STEP = (
    PLAN_WAIT,
    "encode forward",
    "scores and losses",
    "encode backward",
    "clip and check",
    "table update",
    "optimizer",
)
BETWEEN_STEPS = ("refresh", "evaluation")
BESIDE_STEPS = ("plan", "collate")  # in the thread that prepares the next batch


class Profile:
    """Sums the seconds of each part of a run; parts of a step do not overlap."""

    def __init__(self, device: torch.device, on: bool = True) -> None:
        self.on = on
        self.times: Counter[str] = Counter()
        self.seconds = dict.fromkeys((STEP, *OF_A_STEP, *BETWEEN_STEPS, *BESIDE_STEPS), 0.0)
        self.part: Part = self._timed if on else contextlib.nullcontext
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
        self.times[name] += 1

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def summary(self) -> dict[str, Any]:
        """How often each part ran, its milliseconds each time and its share of the total.

        A part of a step counts once per step; background parts have no share of the total.
        """
        steps = self.times[STEP]
        named = {name: self.seconds[name] for name in OF_A_STEP}
        of_steps = self.seconds[STEP] + self.seconds[PLAN_WAIT]
        named["other"] = of_steps - sum(named.values())
        named |= {name: self.seconds[name] for name in BETWEEN_STEPS}
        whole = max(sum(named.values()), 1e-9)

        def row(name: str, seconds: float) -> dict[str, float]:
            times = self.times[name] if name in BETWEEN_STEPS else steps
            return {"times": times, "ms": 1e3 * seconds / max(times, 1)}

        return {
            "seconds": whole,
            "steps": steps,
            "ms_per_step": 1e3 * of_steps / max(steps, 1),
            "parts": {name: {**row(name, value), "share": value / whole} for name, value in named.items()},
            "beside": {name: row(name, self.seconds[name]) for name in BESIDE_STEPS},
        }

    def print_table(self, console: Console) -> None:
        """Print the summary: a row has the count of a part, its time and its share of the total."""
        summary = self.summary()
        parts, steps = summary["parts"], summary["steps"]
        between = {name: parts.pop(name) for name in BETWEEN_STEPS}
        share = sum(part["share"] for part in parts.values())
        table = Table(title="where the time went", title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
        table.add_column("part", no_wrap=True)
        for column in ("count", "ms each", "share"):
            table.add_column(column, justify="right", no_wrap=True)

        def add(name: str, part: dict[str, float]) -> None:
            shown = f"{100 * part['share']:.1f} %" if "share" in part else ""
            table.add_row(name, f"{part['times']:,}", f"{part['ms']:,.2f}", shown)

        for name, part in parts.items():
            add(f"  {name}", part)
        add("step total", {"times": steps, "ms": summary["ms_per_step"], "share": share})
        for name, part in between.items():
            add(name, part)
        add("total", {"times": 1, "ms": 1e3 * summary["seconds"], "share": 1.0})
        table.add_section()
        for name, part in summary["beside"].items():
            add(f"{name} (background thread)", part)
        console.print(table)
