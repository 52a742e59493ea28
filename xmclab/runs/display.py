"""Progress of a run on stderr: a live line on a terminal, plain log lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from xmclab.system.progress import Bar, note


class Display:
    """Shows the records of a run as they come; a context manager."""

    def __init__(
        self,
        console: Console,
        epochs: int,
        steps: int,
        metric: str = "P@1",
        done: int = 0,
        refreshes: Sequence[int] = (),
    ) -> None:
        """
        Args:
            metric: what to show of validations.
            done: steps that an earlier process did.
            refreshes: the steps that a refresh comes before.
        """
        self.console, self.epochs, self.metric = console, epochs, metric
        self._bar = Bar(console, "training", steps, keep=True, done=done, unit="step")
        self._left = TimeLeft(epochs, steps, refreshes)
        self._queries = self._epoch = 0
        self._score, self._validated = "", False

    def __enter__(self) -> Display:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def show(self, record: Mapping[str, Any]) -> None:
        """Show a record: steps on the bar (in a log: every few seconds and at the end of an epoch), others as lines."""
        event = record["event"]
        self._left.see(record, self._bar.seconds)
        if event == "step":
            self._queries += record["queries"]
            self._epoch = record["epoch"] + 1
            self._bar.what = f"epoch {self._epoch}/{self.epochs}"
            left = self._left.after(self._bar.done + 1)
            facts = self._facts(record, self._bar.done + 1)
            self._bar.advance(
                1, self._detail(record), record["last_of_epoch"], facts, left, self._left.grows(self._bar.done + 1)
            )
        elif event == "refresh":
            took = f"{record['seconds']:.1f} s"
            place = f"epoch {record['epoch'] + 1}, step {record['step']}"
            note(self.console, f"{place}: refreshed {record['refreshed']} in {took}")
        elif event == "eval":
            self._evaluated(record)

    def _evaluated(self, record: Mapping[str, Any]) -> None:
        of_validation = record["split"] == "validation"
        if shown := list(_by_search(record, self.metric if of_validation else "")):
            _, metric, value = shown[-1]
            self._score = f"{metric} {value:.2f}"
        scores = "  ".join(f"{name} {metric} {value:.2f}" for name, metric, value in shown)
        if of_validation:
            self._validated = True
            best = "  (best so far)" if record["best"] else ""
            note(self.console, f"after epoch {record['epoch']}: validation {scores}{best}")
        elif self._epoch < self.epochs:  # the last one has a table
            of_epoch = f"kept epoch {record['epoch']}, test" if self._validated else f"after epoch {record['epoch']}"
            note(self.console, f"{of_epoch}: {scores}")

    def stopped(self, epoch: int, best: int) -> None:
        """Say that training stops early, after an epoch that is no better than an earlier one."""
        length = f"{epoch - best} epoch{'s' * (epoch - best > 1)}"
        note(self.console, f"stopped after epoch {epoch}: no better for {length} (stop.patience)")

    @property
    def _rate(self) -> str:
        return f"{self._queries / max(self._bar.seconds, 1e-9):.0f} queries/s"

    def _facts(self, record: Mapping[str, Any], step: int) -> list[str]:
        """For a terminal, the most important first."""
        terms = [f"{name} {value:.3f}" for name, value in record["terms"].items()]
        loss = f"loss {record['loss']:.4f}" if abs(record["loss"]) < 1000 else f"loss {record['loss']:.3g}"
        score = [self._score] if self._score else []
        return [self._rate, loss, *score, f"step {step:,}/{self._bar.total:,}", *terms, *_pool(record)]

    def _detail(self, record: Mapping[str, Any]) -> str:
        """For a log."""
        terms = "  ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
        return "  ".join([f"loss {record['loss']:.4f}  {terms}", *_pool(record), self._rate])


def _pool(record: Mapping[str, Any]) -> list[str]:
    return [
        f"positives/query {record['positives']:.1f}",
        f"pool {record['pool']}",
        f"without positive {record['dropped']}",
    ]


class TimeLeft:
    """The seconds until training ends, by the steps since the pool last grew, and by refreshes and evaluations.

    Before the first refresh there are no mined negatives, and batches may be random: later steps take longer.
    """

    def __init__(self, epochs: int, steps: int, refreshes: Sequence[int]) -> None:
        self.epochs, self.steps, self.refreshes = epochs, steps, sorted(refreshes)
        self._last: float | None = None  # when the last step ended, if nothing but steps happened since
        self._pace: float | None = None  # seconds of a step, of the phase before until this one has some
        self._taken, self._timed = 0.0, 0  # seconds and number of the steps of this phase that were timed
        self._refreshing = self._evaluating = 0.0  # seconds of the last refresh; of evaluations, per epoch
        self._seen: float | None = None  # when the last record came
        self._refreshed = False
        self._evaluated_at = 0  # epochs that were done at the last evaluation

    def see(self, record: Mapping[str, Any], now: float) -> None:
        """Take note of a record that came at this second."""
        event = record["event"]
        if event == "step":
            if self._last is not None:
                self._taken, self._timed = self._taken + now - self._last, self._timed + 1
                self._pace = self._taken / self._timed
            self._last = now
        elif event == "refresh":
            self._refreshing = record["seconds"]
            if not self._refreshed:
                self._refreshed, self._taken, self._timed = True, 0.0, 0
        elif event == "eval":
            if self._seen is not None and record["epoch"] > self._evaluated_at:
                self._evaluating = (now - self._seen) / (record["epoch"] - self._evaluated_at)
            self._evaluated_at = record["epoch"]
        if event != "step":
            self._last = None
        self._seen = now

    def after(self, step: int) -> float | None:
        """The seconds left after so many steps; None if no step was timed yet."""
        if self._pace is None:
            return None
        refreshes = sum(each >= step for each in self.refreshes) * self._refreshing
        steps = self.steps - step
        return steps * self._pace + refreshes + self._evaluating * self.epochs * steps / max(self.steps, 1)

    def grows(self, step: int) -> bool:
        """Whether the first refresh is still to come, after which steps take longer."""
        return bool(self.refreshes) and step <= self.refreshes[0] < self.steps and not self._refreshed


def _by_search(record: Mapping[str, Any], metric: str = "") -> Iterator[tuple[str, str, float]]:
    """(search, metric, value): a metric of every search; by default the first, which is P."""
    for name, row in record["metrics"].items():
        if row:
            which = metric or next(iter(row))
            yield name, which, row[which]
