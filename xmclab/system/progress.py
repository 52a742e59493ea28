"""Progress: a bar on a terminal, a line now and then in a log, nothing without a console."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from xmclab.system.terminal import printable

SECONDS_BETWEEN_LINES = 10.0


def note(console: Console | None, text: str) -> None:
    """Print a line that stays."""
    if console is not None:
        console.print(printable(text), style="dim", markup=False, highlight=False, soft_wrap=True)


class Bar:
    """The progress of one job; a context manager."""

    def __init__(self, console: Console | None, what: str, total: int, keep: bool = False, done: int = 0) -> None:
        """
        Args:
            keep: leave the bar on the terminal when the job is done.
            done: what was done before.
        """
        self.console, self.what, self.total, self.keep = console, what, total, keep
        self.done = self.before = done
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        self._started = self._last_line = time.monotonic()
        if self.console is not None and self.console.is_terminal:
            columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            detail = TextColumn("{task.fields[detail]}", style="dim", markup=False)
            what = TextColumn("{task.description}", markup=False)
            self._progress = Progress(what, *columns, detail, console=self.console, transient=not self.keep)
            self._task = self._progress.add_task(printable(self.what), total=self.total, completed=self.done, detail="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def advance(self, number: int, detail: str = "", line: bool = False) -> None:
        """Report `number` more as done; `line`: write a log line even if the last one is recent."""
        self.done += number
        if self._progress is not None:
            what, detail = printable(self.what), printable(detail)
            self._progress.update(self._task, completed=self.done, description=what, detail=detail)
            return
        now = time.monotonic()
        if line or now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = self.seconds / (self.done - self.before) * (self.total - self.done)
            note(
                self.console,
                "  ".join(filter(None, (f"{self.what} {self.done:,}/{self.total:,}", detail, f"{left:.0f} s left"))),
            )
