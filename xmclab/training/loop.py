"""The training loop: epochs, refresh, plan, step, log, evaluate. Everything that decides *when* is in this file.

`trainer.py` and `step.py` define a step; the caller decides where records go and how the model is evaluated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from xmclab.api import View
from xmclab.training.trainer import Trainer

Log = Callable[[Mapping[str, Any]], None]
Evaluate = Callable[[], Mapping[str, Mapping[str, float]]]  # metrics in percent, by search


def fit(trainer: Trainer, log: Log, evaluate: Evaluate) -> float:
    """Train for all epochs; evaluate every `evaluate.every` of them, and at the end.

    Args:
        log: called with a record of every step, refresh and evaluation.
        evaluate: evaluates the current model.

    Returns:
        The seconds of training, without evaluations.
    """
    epochs, every = trainer.settings.epochs, trainer.settings.evaluate.every
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
            log({"event": "eval", "epoch": done, "seconds": seconds, "metrics": evaluate()})
    return seconds
