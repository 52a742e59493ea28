"""When clusters and mined negatives are refreshed: between epochs, or every so many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xmclab.host.schema import Settings


@dataclass(frozen=True)
class Refreshes:
    """The rhythm of a run, in steps if `refresh_steps` is set, in epochs otherwise."""

    settings: Settings
    steps_per_epoch: int
    needed: bool = True  # by the sampler or the miner

    def due(self, epoch: int, batch: int, step: int) -> bool:
        """Whether to refresh at this place between two steps, after so many batches of the epoch and steps in all."""
        every, steps = self.settings.refresh_every, self.settings.refresh_steps
        if not self.needed:
            return False
        if steps:
            return step >= self._first_step and (step - self._first_step) % steps == 0
        first = self.settings.refresh_from or every
        return batch == 0 and epoch >= first and (epoch - first) % every == 0

    def within(self, step: int) -> int | None:
        """The steps from this one on that see the same negatives; None: all those of the epoch."""
        steps = self.settings.refresh_steps
        if not steps or not self.needed:
            return None
        return self._first_step - step if step < self._first_step else steps - (step - self._first_step) % steps

    @property
    def _first_step(self) -> int:
        return self.settings.refresh_from * self.steps_per_epoch or self.settings.refresh_steps

    @property
    def passes(self) -> int:
        """How often a query is trained on between two refreshes, at most: the epochs, or those that the steps make."""
        steps = self.settings.refresh_steps
        return math.ceil(steps / self.steps_per_epoch) if steps else self.settings.refresh_every

    @property
    def before(self) -> list[int]:
        """The steps of the run that a refresh comes before."""
        epochs, per_epoch = self.settings.epochs, self.steps_per_epoch
        if not self.needed:
            return []
        if self.settings.refresh_steps:
            return list(range(self._first_step, epochs * per_epoch, self.settings.refresh_steps))
        return [epoch * per_epoch for epoch in range(epochs) if self.due(epoch, 0, epoch * per_epoch)]
