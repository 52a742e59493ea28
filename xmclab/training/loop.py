"""The training loop: epochs, refresh, plan, step, log, checkpoint, evaluate. Everything that decides *when* is here.

`trainer.py` defines a step; the caller decides where records and checkpoints go and how the model is measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from xmclab.training.trainer import Trainer

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

    def after_step(self, at: Position) -> None:
        """Between two steps."""

    def after_epoch(self, at: Position) -> None:
        """After the last step of an epoch, before the model is measured. The model stays as it is until a step."""

    def after_training(self) -> None:
        """The model is final."""

    def phase(self) -> contextlib.AbstractContextManager[object]:
        """Around work that may be broken off, because it can be repeated: refreshes and evaluations."""
        return contextlib.nullcontext()


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
                    record = trainer.step(at.step, batch)
                    last = at.batch + 1 == len(plan)
                    log({"event": "step", "epoch": epoch, "step": at.step, "last_of_epoch": last, **record})
                at = Position(epoch, at.batch + 1, at.step + 1, before + time.perf_counter() - began)
                guard.after_step(at)
        guard.after_epoch(at)

        done = epoch + 1
        if (validation and done == settings.epochs) or (every and done % every == 0 and done < settings.epochs):
            trainer.model.settle()
            record = {"event": "eval", "epoch": done, "seconds": at.seconds}
            with guard.phase():
                if validation:
                    record |= {"split": "validation", **validation.measure(done)}
                else:
                    record |= {"split": "test", "metrics": evaluate()}
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


def _refresh_if_due(trainer: Trainer, at: Position, log: Log, guard: Guard) -> None:
    """Refresh clusters and negatives where it is time; no batch is being prepared."""
    if trainer.refreshes.due(at.epoch, at.batch, at.step):
        began = time.perf_counter()
        with guard.phase():
            report = trainer.refresh(at.epoch, at.batch)
        seconds = time.perf_counter() - began
        log({"event": "refresh", "epoch": at.epoch, "step": at.step, "seconds": seconds, **report})
