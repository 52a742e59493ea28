"""Progress: one line that fits a terminal, a line now and then in a log, nothing without a console."""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from xmclab.system.terminal import printable

SECONDS_BETWEEN_LINES = 10.0
NARROWEST, WIDEST = 8, 20  # columns of a bar
GAP = 2  # columns between facts
PIECE = 1 << 20  # bytes of a file between two looks at how much was read
ECHO = 2  # columns left free, as a terminal shows ^C there: a line that it broke could not be cleared
SPINNER, ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/"


def note(console: Console | None, text: str) -> None:
    """Print a line that stays."""
    if console is not None:
        console.print(printable(text), style="dim", markup=False, highlight=False, soft_wrap=True)


def _takes_a_live_line(console: Console) -> bool:
    """Whether it is a terminal, or a notebook with the widgets that rich needs for one."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class Bar:
    """The progress of one job; a context manager."""

    def __init__(
        self,
        console: Console | None,
        what: str,
        total: int,
        keep: bool = False,
        done: int = 0,
        unit: str = "",
    ) -> None:
        """
        Args:
            keep: leave the bar on the terminal when the job is done.
            done: what was done before.
            unit: what is counted: shown before the numbers.
            total: 0 if nobody knows; a terminal then shows the seconds.
        """
        self.console, self.what, self.total, self.keep, self.unit = console, what, total, keep, unit
        self.done = self.before = done
        self._facts: Sequence[str] = ()
        self._left, self._at_least, self._told = math.nan, False, 0.0
        self._live: Live | None = None

    def __enter__(self) -> Bar:
        self._started = self._last_line = self._told = time.monotonic()
        if self.console is not None and _takes_a_live_line(self.console):
            self._live = Live(self, console=self.console, refresh_per_second=8, transient=not self.keep)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def advance(
        self,
        number: int,
        detail: str = "",
        line: bool = False,
        facts: Sequence[str] = (),
        left: float | None = None,
        at_least: bool = False,
    ) -> None:
        """Report `number` more as done.

        Args:
            detail: what a log line says.
            line: write a log line even if the last one is recent.
            facts: what a terminal shows, the most important first: as many as fit. The time left comes second.
            left: seconds until the end; by default those before, in proportion.
            at_least: it may well take longer.
        """
        self.done += number
        now = time.monotonic()
        if left is None:
            left = self.seconds / max(self.done - self.before, 1) * (self.total - self.done)
        self._facts, self._left, self._at_least, self._told = facts, left, at_least, now
        if self._live is None and (line or now - self._last_line >= SECONDS_BETWEEN_LINES):
            self._last_line = now
            remaining = f"{'at least ' if at_least else ''}{left:.0f} s left"
            counted = " ".join(filter(None, (self.what, self._count())))
            note(self.console, "  ".join(filter(None, (counted, detail, remaining))))

    def become(self, what: str, done: int, total: int) -> None:
        """Show this much of that job instead, in bytes."""
        if what != self.what:
            self.what, self._started, self._left, self.before = what, time.monotonic(), math.nan, 0
        self.total, self.done = total, 0
        self.advance(done, facts=[f"{done / 1e6:,.0f}/{total / 1e6:,.0f} MB"])

    def _count(self) -> str:
        return f"{self.unit} {self.done:,}/{self.total:,}".strip()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One line: what, the bar, and the facts that fit."""
        width, what, now = max(options.max_width - ECHO, 1), printable(self.what), time.monotonic()
        if not self.total:
            frames = ASCII_SPINNER if options.ascii_only else SPINNER
            spinning = f"{frames[int(now * 8) % len(frames)]} {what}  {clock(now - self._started)}"
            line = Text(spinning, "dim", no_wrap=True, end="")
            line.truncate(width, overflow="ellipsis")
            yield line
            return
        remaining = max(self._left - (now - self._told), 0.0)
        left = [] if math.isnan(remaining) else [f"{clock(remaining)}{'+' * self._at_least} left"]
        count, elapsed = self._count(), f"{clock(now - self._started)} elapsed"
        first, rest = ([*self._facts[:1], *left], self._facts[1:]) if self._facts else ([count, *left], ())
        facts = [printable(fact) for fact in (*first, *rest, elapsed)]
        room = width - len(what) - 1 - NARROWEST
        kept = []
        for fact in facts:
            if len(fact) + GAP > room:
                break
            room -= len(fact) + GAP
            kept.append(fact)
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        line.append(f"{what} ")
        line.append_text(_bar(self.done / max(self.total, 1), min(NARROWEST + max(room, 0), WIDEST), console, options))
        for place, fact in enumerate(kept):
            line.append(" " * GAP + fact, "" if place < 4 else "dim")
        line.truncate(width, overflow="ellipsis")
        yield line


def _bar(share: float, width: int, console: Console, options: ConsoleOptions) -> Text:
    full = round(min(share, 1.0) * width)
    mark, space = ("#", "-") if options.ascii_only else ("━", "━" if console.color_system else " ")
    return Text.assemble((mark * full, "bar.complete"), (space * (width - full), "bar.back"))


def clock(seconds: float) -> str:
    """Seconds as on a clock: 1:02:35."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


_WORK: ContextVar[Bar | None] = ContextVar("work", default=None)


@contextlib.contextmanager
def working(console: Console | None, what: str) -> Iterator[None]:
    """Show on a terminal that something is being done; the work itself may tell how far it is, by `so_far`."""
    if console is None or not console.is_terminal:
        yield
        return
    with Bar(console, what, 0) as bar:
        token = _WORK.set(bar)
        try:
            yield
        finally:
            _WORK.reset(token)


def so_far(what: str, done: int, total: int) -> None:
    """Show, in place of what is shown by the innermost `working`, how many bytes of a file are read."""
    if (bar := _WORK.get()) is not None:
        bar.become(what, done, total)


def watched(file: Path) -> io.BufferedReader:
    """The file, opened to be read; `working` shows how much of it was."""
    return io.BufferedReader(_Watched(file), PIECE)


class _Watched(io.FileIO):
    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._what, self._size = f"reading {file.name}", file.stat().st_size

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        so_far(self._what, self.tell(), self._size)
        return count
