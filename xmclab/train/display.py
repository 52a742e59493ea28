"""What a person sees while a run trains: a live line on a terminal, plain log lines elsewhere. All on stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from xmclab.progress import SECONDS_BETWEEN_LINES, note


class Display:
    """Shows the records of a run as they come."""

    def __init__(self, console: Console, epochs: int, steps: int) -> None:
        self.console = console
        self.epochs = epochs
        self.steps = steps
        self._seen_queries = 0
        self._clock = self._last_line = time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> Display:
        self._clock = self._last_line = time.monotonic()
        if self.console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[detail]}", style="dim"),
                console=self.console,
            )
            self._task = self._progress.add_task("training", total=self.steps, detail="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def note(self, text: str) -> None:
        """A line that stays."""
        note(self.console, text)

    def step(self, record: Mapping[str, Any]) -> None:
        """Show a step's record: on a terminal at once, in a log every few seconds and at the end of an epoch."""
        self._seen_queries += record["queries"]
        done = record["step"] + 1
        if self._progress is not None:
            epoch = f"epoch {record['epoch'] + 1}/{self.epochs}"
            self._progress.update(self._task, completed=done, description=epoch, detail=self._detail(record))
            return
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES or record["last_of_epoch"]:
            self._last_line = now
            left = (now - self._clock) / done * (self.steps - done)
            where = f"epoch {record['epoch'] + 1}/{self.epochs} step {done}/{self.steps}"
            self.note(f"{where}  {self._detail(record)}  {left:.0f} s left")

    def _detail(self, record: Mapping[str, Any]) -> str:
        rate = self._seen_queries / max(time.monotonic() - self._clock, 1e-9)
        terms = "  ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
        return (
            f"loss {record['loss']:.4f}  {terms}  positives/query {record['positives']:.1f}  pool {record['pool']}  "
            f"without positive {record['dropped']}  {rate:.0f} queries/s"
        )
