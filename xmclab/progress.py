"""A bar on a terminal, a line now and then in a log, nothing where nobody looks."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


def note(console: Console | None, text: str) -> None:
    """A line that stays."""
    if console is not None:
        console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


class Bar:
    """How far something has come; a context."""

    def __init__(self, console: Console | None, what: str, total: int) -> None:
        self.console, self.what, self.total = console, what, total
        self.done = 0
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        self._started = self._last_line = time.monotonic()
        if self.console is not None and self.console.is_terminal:
            columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._progress = Progress(TextColumn("{task.description}"), *columns, console=self.console, transient=True)
            self._task = self._progress.add_task(self.what, total=self.total)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, number: int) -> None:
        self.done += number
        if self._progress is not None:
            self._progress.update(self._task, completed=self.done)
            return
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (now - self._started) / self.done * (self.total - self.done)
            note(self.console, f"{self.what}: {self.done:,} of {self.total:,}, {left:.0f} s left")
