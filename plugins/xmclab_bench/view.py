"""The state of a whole grid while it runs: a live table on a terminal, a line per finished cell elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from xmclab.errors import ConfigError
from xmclab.host.recipes import read_plain
from xmclab_bench.run_folder import CONFIG, RECORDS, RESULT
from xmclab_bench.spec import Cell


@dataclass(frozen=True)
class Job:
    """A cell and the folder of its run."""

    cell: Cell
    folder: Path

    @property
    def done(self) -> bool:
        return (self.folder / RESULT).is_file()

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.cell.row, self.cell.column, f"seed {self.cell.seed}") if part)

    @property
    def share(self) -> float | None:
        """How much of the training is done; None before it began."""
        try:
            epochs = read_plain(self.folder / CONFIG)["epochs"]
            with (self.folder / RECORDS).open("rb") as stream:
                stream.seek(max(0, stream.seek(0, 2) - 8192))
                lines = stream.read().decode(errors="replace").split("\n")
            last = json.loads(lines[-2])
            return float(last["epoch"] / epochs)
        except (OSError, ValueError, KeyError, IndexError, TypeError, ConfigError):
            return None  # another process is still writing them


class GridView:
    """Shows the cells of a bench; a context."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self.jobs, self.console = jobs, console
        self.cached = {job for job in jobs if job.done}
        self.failed: set[Job] = set()
        self.running: set[Job] = set()
        self._ended = 0
        self._live: Live | None = None

    def __enter__(self) -> GridView:
        self._started = time.monotonic()
        self._say(f"{len(self.jobs)} cells, {len(self.cached)} already done")
        if self.console.is_terminal and len(self.cached) < len(self.jobs):
            self._live = Live(self._table(), console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def ended(self, job: Job, reason: str) -> None:
        """A cell is done, or failed for a reason."""
        self._ended += 1
        if reason:
            self.failed.add(job)
        count = f"[{self._ended}/{len(self.jobs) - len(self.cached)}]"
        self._say(f"{count} {job.name}: {'failed: ' + reason if reason else 'done'}{self._left()}")

    def update(self, running: Collection[Job] = ()) -> None:
        """Show the cells as they are now, and which of them have a process."""
        self.running = set(running)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def _say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def _left(self) -> str:
        left = len(self.jobs) - len(self.cached) - self._ended
        if not left or not self._ended:
            return ""
        return f"; about {(time.monotonic() - self._started) / self._ended * left:.0f} s left"

    def _table(self) -> Table:
        seeds = list(dict.fromkeys(job.cell.seed for job in self.jobs))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("", *(f"seed {seed}" for seed in seeds)):
            table.add_column(heading, justify="left")
        rows: dict[str, dict[int, str]] = {}
        for job in self.jobs:
            name = ", ".join(part for part in (job.cell.row, job.cell.column) if part)
            rows.setdefault(name, {})[job.cell.seed] = self._state(job)
        for name, states in rows.items():
            table.add_row(escape(name), *(states.get(seed, "") for seed in seeds))
        return table

    def _state(self, job: Job) -> str:
        if job in self.failed:
            return "[red]failed[/]"
        if job.done:
            return "[dim]known[/]" if job in self.cached else "[green]done[/]"
        share = job.share
        if share is None:
            return "running" if job in self.running else "[dim]waiting[/]"
        return f"{100 * share:.0f} %"
