"""One step of a run again: from the checkpoint before it, without an update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from xmclab.data.tokens import Tokeniser
from xmclab.data.validation import open_with_validation
from xmclab.errors import DivergedError, Problem, StorageError
from xmclab.host.config import Config
from xmclab.model.device import numerics, pick_device
from xmclab.runs import store
from xmclab.runs.resume import earlier_run
from xmclab.training.diagnosis import diagnose
from xmclab.training.loop import Position
from xmclab.training.trainer import Trainer


@dataclass(frozen=True)
class Replay:
    """A step that was repeated."""

    step: int
    record: dict[str, Any]  # as in metrics.jsonl; of a step that is not finite, what is known of it
    scores: dict[str, tuple[float, float]]  # head -> the smallest and the largest score
    problems: list[Problem]  # empty: all numbers are finite


def replay(folder: Path, config: Config, console: Console | None = None) -> Replay:
    """Repeat the step after the newest checkpoint of a run, which a step that is not finite leaves behind.

    Nothing is written.

    Args:
        config: that of the run, see `overrides_of`.

    Raises:
        StorageError: there is no checkpoint, or it is damaged.
    """
    opened = open_with_validation(config)
    config, found = earlier_run(folder, config, opened, strict=True)
    if found is None:
        hint = "a step that is not finite leaves one, unless checkpoint.every=0"
        raise StorageError(Problem(str(folder), "the run has no checkpoint", hint))
    settings = config.settings
    with numerics(pick_device(settings.device), settings.deterministic, settings.tf32):
        tokeniser = Tokeniser(config.settings.data, console)
        trainer = Trainer(config, opened.training, tokeniser, assets=folder / store.ENCODER)
        found.restore(trainer, None)
        at, plan = found.at, trainer.plan(found.at.epoch)
        if at.batch >= len(plan):
            at, plan = _next_epoch(folder, trainer, at)
        elif trainer.refreshes.due(at.epoch, at.batch, at.step):
            trainer.refresh(at.epoch, at.batch)
        prepared = trainer.prepare(at.step, plan[at.batch])
        scores = diagnose(trainer, at.step, prepared).scores
        torch.manual_seed(prepared.seed)
        try:
            return Replay(at.step, dict(trainer.step(at.step, prepared)), scores, [])
        except DivergedError as error:
            return Replay(at.step, dict(error.details or {}), scores, error.problems)


def _next_epoch(folder: Path, trainer: Trainer, at: Position) -> tuple[Position, list[NDArray[np.int64]]]:
    """The first step of the epoch after this one, which begins with a refresh if one is due, and its batches."""
    epoch = at.epoch + 1
    if epoch >= trainer.settings.epochs:
        raise StorageError(Problem(str(folder), "its newest checkpoint is that of its last step: none follows"))
    if trainer.refreshes.due(epoch, 0, at.step):
        trainer.refresh(epoch)
    return replace(at, epoch=epoch, batch=0), trainer.plan(epoch)
