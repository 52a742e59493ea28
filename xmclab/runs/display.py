"""Progress of a run on stderr: a live line on a terminal, plain log lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from xmclab.system.progress import Bar, note


class Display:
    """Shows the records of a run as they come; a context manager."""

    def __init__(self, console: Console, epochs: int, steps: int, metric: str = "P@1", done: int = 0) -> None:
        """
        Args:
            metric: what to show of validations.
            done: steps that an earlier process did.
        """
        self.console, self.epochs, self.metric = console, epochs, metric
        self._bar = Bar(console, "training", steps, keep=True, done=done)
        self._queries = self._epoch = 0

    def __enter__(self) -> Display:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def show(self, record: Mapping[str, Any]) -> None:
        """Show a record: steps on the bar (in a log: every few seconds and at the end of an epoch), others as lines."""
        event = record["event"]
        if event == "step":
            self._queries += record["queries"]
            self._epoch = record["epoch"] + 1
            self._bar.what = f"epoch {self._epoch}/{self.epochs} step"
            self._bar.advance(1, self._detail(record), line=record["last_of_epoch"])
        elif event == "refresh":
            took = f"{record['seconds']:.1f} s"
            place = f"epoch {record['epoch'] + 1}, step {record['step']}"
            note(self.console, f"{place}: refreshed clusters and negatives in {took}")
        elif event == "eval" and record["split"] == "validation":
            best = "  (best so far)" if record["best"] else ""
            note(self.console, f"after epoch {record['epoch']}: validation {_scores(record, self.metric)}{best}")
        elif event == "eval" and self._epoch < self.epochs:  # the last one has a table
            note(self.console, f"after epoch {record['epoch']}: {_scores(record)}")

    def _detail(self, record: Mapping[str, Any]) -> str:
        rate = self._queries / max(self._bar.seconds, 1e-9)
        terms = "  ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
        return (
            f"loss {record['loss']:.4f}  {terms}  positives/query {record['positives']:.1f}  pool {record['pool']}  "
            f"without positive {record['dropped']}  {rate:.0f} queries/s"
        )


def _scores(record: Mapping[str, Any], metric: str = "") -> str:
    """A metric of every search; by default the first, which is P."""
    shown = ((name, metric or next(iter(row)), row) for name, row in record["metrics"].items() if row)
    return "  ".join(f"{name} {which} {row[which]:.2f}" for name, which, row in shown)
