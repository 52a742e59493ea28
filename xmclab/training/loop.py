"""The training loop: epochs, refresh, plan, step, log, checkpoint, evaluate. Everything that decides *when* is here.

`trainer.py` defines a step; the caller decides where records and checkpoints go and how the model is measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from xmclab.training.trainer import Launched, Trainer

Log = Callable[[Mapping[str, Any]], None]
Evaluate = Callable[[], Mapping[str, Mapping[str, float]]]  # metrics in percent, by search


@dataclass(frozen=True)
class Position:
    """A place between two steps of a run."""

    epoch: int = 0  # from 0; the one that the next step belongs to, or that has just ended
    batch: int = 0  # batches of the epoch that are done
    step: int = 0  # steps that are done
    seconds: float = 0.0  # of training, without evaluations


class Validation(Protocol):
    """Chooses an epoch by the validation queries."""

    def measure(self, epoch: int) -> Mapping[str, Any]:
        """Measure the current model, and keep its weights if they are the best so far; fields of the record."""

    @property
    def enough(self) -> bool:
        """Whether to stop, as the model does not become better."""

    def restore(self) -> int:
        """Give the model the weights of the best epoch, which is returned."""


class Guard:
    """Hears of every place where a run can be continued from, and may stop it there; this one does nothing."""

    def reached(self, at: Position) -> None:
        """The step before this place is done, and its numbers are finite."""

    def after_step(self, at: Position, known: Callable[[], None]) -> None:
        """Between two steps; `known` waits until all before are done and logged, as whoever reads the model must."""

    def after_epoch(self, at: Position) -> None:
        """After the last step of an epoch, before the model is measured. The model stays as it is until a step."""

    def after_training(self) -> None:
        """The model is final."""

    def phase(self) -> contextlib.AbstractContextManager[object]:
        """Around work that may be broken off, because it can be repeated: refreshes and evaluations."""
        return contextlib.nullcontext()


class Steps:
    """Logs steps as they end. Where the host would have to wait for that, it first begins the next one."""

    def __init__(self, trainer: Trainer, log: Log, guard: Guard) -> None:
        self.trainer, self.log, self.guard = trainer, log, guard
        self._running: tuple[Launched, Position, bool] | None = None

    def begin(self, launched: Launched, after: Position, last_of_epoch: bool) -> None:
        """Take a step that was begun, and the place behind it."""
        self.finish()
        self._running = launched, after, last_of_epoch
        if not self.trainer.late:
            self.finish()

    def finish(self) -> None:
        """Wait for the latest step."""
        if self._running is None:
            return
        (launched, after, last), self._running = self._running, None
        record = self.trainer.finish(launched)
        self.log({"event": "step", "epoch": after.epoch, "step": launched.step, "last_of_epoch": last, **record})
        self.guard.reached(after)


def fit(
    trainer: Trainer,
    log: Log,
    evaluate: Evaluate,
    validation: Validation | None = None,
    guard: Guard | None = None,
    start: Position = Position(),  # noqa: B008  # frozen
) -> float:
    """Train for all epochs; evaluate every `evaluate.every` of them, and at the end.

    With validation, validate every `validate.every` epochs and after the last, and stop when it says so; then restore
    the best epoch and evaluate it, once.

    Args:
        log: called with a record of every step, refresh and evaluation.
        evaluate: evaluates the current model on the queries that results are of.
        start: where an earlier run got to; the trainer has the state of then.

    Returns:
        The seconds of training, without evaluations.
    """
    settings, guard, at = trainer.settings, guard or Guard(), start
    steps = Steps(trainer, log, guard)
    every = (settings.validate if validation else settings.evaluate).every
    for epoch in range(start.epoch, settings.epochs):
        at = at if epoch == at.epoch else replace(at, epoch=epoch, batch=0)
        before, began = at.seconds, time.perf_counter()
        if not at.batch:
            _refresh_if_due(trainer, at, log, guard)
        plan = trainer.plan(epoch)
        while at.batch < len(plan):
            if at.batch:  # new negatives, the same plan
                _refresh_if_due(trainer, at, log, guard)
            for batch in trainer.batches(plan[at.batch :][: trainer.refreshes.within(at.step)], at.step):
                with trainer.part("step"):
                    launched = trainer.launch(at.step, batch)
                    at = Position(epoch, at.batch + 1, at.step + 1, before + time.perf_counter() - began)
                    steps.begin(launched, at, at.batch == len(plan))
                guard.after_step(at, steps.finish)
            steps.finish()
        guard.after_epoch(at)

        done = epoch + 1
        if (validation and done == settings.epochs) or (every and done % every == 0 and done < settings.epochs):
            trainer.model.settle()
            record = {"event": "eval", "epoch": done, "seconds": at.seconds}
            with guard.phase():
                record |= _measured(done, evaluate, validation)
            log(record)
            if validation and validation.enough:
                break

    kept = validation.restore() if validation else settings.epochs
    trainer.model.settle()
    guard.after_training()
    with guard.phase():
        metrics = evaluate()
    if settings.evaluate.test or not validation:  # otherwise they are known: those of the best epoch
        log({"event": "eval", "epoch": kept, "seconds": at.seconds, "split": "test", "metrics": metrics})
    return at.seconds


def _measured(epoch: int, evaluate: Evaluate, validation: Validation | None) -> Mapping[str, Any]:
    """What the record of an evaluation between epochs says."""
    if validation:
        return {"split": "validation", **validation.measure(epoch)}
    return {"split": "test", "metrics": evaluate()}


def _refresh_if_due(trainer: Trainer, at: Position, log: Log, guard: Guard) -> None:
    """Refresh clusters and negatives where it is time; no batch is being prepared."""
    if trainer.refreshes.due(at.epoch, at.batch, at.step):
        began = time.perf_counter()
        with guard.phase():
            report = trainer.refresh(at.epoch, at.batch)
        seconds = time.perf_counter() - began
        log({"event": "refresh", "epoch": at.epoch, "step": at.step, "seconds": seconds, **report})
