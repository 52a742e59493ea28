"""Samplers that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab import hookimpl, option, part
from xmclab.api import Keys, Sampler, View

Rows = NDArray[np.int64]


def batches(rows_N: Rows, batch_size: int) -> list[Rows]:
    return np.array_split(rows_N, math.ceil(len(rows_N) / batch_size))


@dataclass
class Shuffled(Sampler):
    """What the others spoil."""

    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        return batches(keys.rng("plan", epoch).permutation(rows_N), self.batch_size)


@dataclass
class Abstract(Sampler):
    pass


@dataclass
class DefaultOutOfBounds(Shuffled):
    share: float = option(2.0, "of the queries", le=1)


@dataclass
class Lists(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        return [batch.tolist() for batch in super().plan(rows_N, targets_NL, epoch, view, keys)]  # type: ignore[misc]


@dataclass
class EmptyBatch(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        return np.array_split(keys.rng("plan", epoch).permutation(rows_N), 1 + len(rows_N) // self.batch_size)


@dataclass
class DropsTheRest(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        whole = max(len(rows_N) // self.batch_size, 1) * self.batch_size
        return batches(keys.rng("plan", epoch).permutation(rows_N)[:whole], self.batch_size)


@dataclass
class WithReplacement(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        return batches(keys.rng("plan", epoch).choice(rows_N, len(rows_N)), self.batch_size)


@dataclass
class EverybodyInTheView(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        steps = math.ceil(len(rows_N) / self.batch_size)
        everybody = rows_N if view is None else np.arange(len(view.queries_ND))
        return np.array_split(everybody, steps) if len(everybody) <= steps * 2 * self.batch_size else [rows_N]


@dataclass
class OneBatch(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        return [rows_N]


@dataclass
class SmallerLater(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        return batches(rows_N, max(self.batch_size >> epoch, 1))


@dataclass
class OwnDraws(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        return batches(np.random.default_rng().permutation(rows_N), self.batch_size)


@dataclass
class CountsItsCalls(Shuffled):
    def __post_init__(self) -> None:
        self.calls = 0

    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        self.calls += 1
        return super().plan(rows_N, targets_NL, self.calls, view, keys)


@dataclass
class ShufflesInPlace(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        keys.rng("plan", epoch).shuffle(rows_N)
        return batches(rows_N, self.batch_size)


@dataclass
class CentresTheView(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        if view is not None:
            view.queries_ND.__isub__(view.queries_ND.mean(axis=0))
        return super().plan(rows_N, targets_NL, epoch, view, keys)


@dataclass
class ForgetsTargets(Shuffled):
    def plan(self, rows_N: Rows, targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys) -> list[Rows]:
        targets_NL.data[:] = 0
        return super().plan(rows_N, targets_NL, epoch, view, keys)


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__abstract": Abstract,
        "options__default": DefaultOutOfBounds,
        "shape__lists": Lists,
        "shape__empty": EmptyBatch,
        "partition__rest": DropsTheRest,
        "partition__twice": WithReplacement,
        "partition__strangers": EverybodyInTheView,
        "sizes__one_batch": OneBatch,
        "steps__smaller": SmallerLater,
        "pure__own_draws": OwnDraws,
        "pure__calls": CountsItsCalls,
        "unchanged__rows": ShufflesInPlace,
        "unchanged__view": CentresTheView,
        "unchanged__targets": ForgetsTargets,
    }
    return [part("sampler", name, cls) for name, cls in classes.items()]
