"""The training loop: epochs, refresh, plan, step, log, evaluate. Everything that decides *when* is in this file.

`trainer.py` defines a step; the caller decides where records go and how the model is evaluated or validated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from xmclab.api import View
from xmclab.training.trainer import Trainer

Log = Callable[[Mapping[str, Any]], None]
Evaluate = Callable[[], Mapping[str, Mapping[str, float]]]  # metrics in percent, by search


class Validation(Protocol):
    """Chooses an epoch by the validation queries."""

    def measure(self, epoch: int) -> Mapping[str, Any]:
        """Measure the current model, and keep its weights if they are the best so far; fields of the record."""

    def restore(self) -> int:
        """Give the model the weights of the best epoch, which is returned."""


def fit(trainer: Trainer, log: Log, evaluate: Evaluate, validation: Validation | None = None) -> float:
    """Train for all epochs; evaluate every `evaluate.every` of them, and at the end.

    With validation, validate every `validate.every` epochs and after the last; then restore the best epoch and evaluate
    it, once.

    Args:
        log: called with a record of every step, refresh and evaluation.
        evaluate: evaluates the current model on the queries that results are of.

    Returns:
        The seconds of training, without evaluations.
    """
    epochs = trainer.settings.epochs
    every = (trainer.settings.validate if validation else trainer.settings.evaluate).every
    view: View | None = None
    step, seconds = 0, 0.0
    for epoch in range(epochs):
        started = time.perf_counter()
        if trainer.refresh_due(epoch):
            view = trainer.refresh(epoch)
            took = time.perf_counter() - started
            log({"event": "refresh", "epoch": epoch, "seconds": took, **trainer.miner.report()})

        plan = trainer.plan(epoch, view)
        last_step = step + len(plan) - 1
        for batch in trainer.batches(plan, step):
            with trainer.part("step"):
                record = trainer.step(step, batch)
                log({"event": "step", "epoch": epoch, "step": step, "last_of_epoch": step == last_step, **record})
            step += 1
        seconds += time.perf_counter() - started

        done = epoch + 1
        if done == epochs or (every and done % every == 0):
            trainer.model.settle()
            record = {"event": "eval", "epoch": done, "seconds": seconds}
            if validation:
                log({**record, "split": "validation", **validation.measure(done)})
            else:
                log({**record, "split": "test", "metrics": evaluate()})
    if validation:
        kept = validation.restore()
        metrics = evaluate()
        if trainer.settings.evaluate.test:  # otherwise they are known: those of the best epoch
            log({"event": "eval", "epoch": kept, "seconds": seconds, "split": "test", "metrics": metrics})
    return seconds
