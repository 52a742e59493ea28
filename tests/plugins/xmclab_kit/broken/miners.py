"""Miners that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab import hookimpl, option, part
from xmclab.api import Dataset, Keys, Miner, View

Ids = NDArray[np.int64]


@dataclass
class Uniform(Miner):
    """What the others spoil: labels drawn from those that are allowed."""

    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        drawn = np.full((len(rows_Q), n), -1)
        for place, row in enumerate(rows_Q):
            allowed = self.allowed(exclude_NL, place, row)
            labels = rng.permutation(allowed)[:n]
            drawn[place, : len(labels)] = labels
        return drawn

    def allowed(self, exclude_NL: sp.csr_array, place: int, row: int) -> Ids:
        return np.setdiff1d(np.arange(exclude_NL.shape[1]), exclude_NL[[row]].nonzero()[1])


class NoDataclass(Uniform):
    pass


@dataclass
class DefaultOutOfBounds(Uniform):
    share: float = option(2.0, "of the labels", le=1)


@dataclass
class TooFewColumns(Uniform):
    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        return super().sample(rows_Q, min(n, exclude_NL.shape[1]), exclude_NL, rng)


@dataclass
class ShortIds(Uniform):
    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        return super().sample(rows_Q, n, exclude_NL, rng).astype(np.int32)  # type: ignore[return-value]


@dataclass
class NothingBeforeTheView(Uniform):
    needs_view: ClassVar[bool] = True

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        self.labels = np.arange(len(view.labels_LD))

    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        assert len(self.labels)
        return super().sample(rows_Q, n, exclude_NL, rng)


@dataclass
class AnyLabel(Uniform):
    def allowed(self, exclude_NL: sp.csr_array, place: int, row: int) -> Ids:
        return np.arange(exclude_NL.shape[1])


@dataclass
class ByPlace(Uniform):
    def allowed(self, exclude_NL: sp.csr_array, place: int, row: int) -> Ids:
        ours = super().allowed(exclude_NL, place, row)
        return ours if place == row else super().allowed(exclude_NL, place, place)


@dataclass
class WithReplacement(Uniform):
    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        drawn = super().sample(rows_Q, n, exclude_NL, rng)
        for labels in drawn:
            if (labels >= 0).any():
                labels[:] = rng.choice(labels[labels >= 0], n)
        return drawn


@dataclass
class MinesPositivesToo(Uniform):
    """The nearest `depth` labels, of which the excluded ones are dropped afterwards."""

    needs_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.nearest: Ids | None = None

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        self.nearest = np.argsort(-view.queries_ND @ view.labels_LD.T, axis=1)[:, :depth]

    def allowed(self, exclude_NL: sp.csr_array, place: int, row: int) -> Ids:
        if self.nearest is None:
            return np.empty(0, dtype=np.int64)
        return np.intersect1d(super().allowed(exclude_NL, place, row), self.nearest[row])


@dataclass
class OwnDraws(Uniform):
    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        return super().sample(rows_Q, n, exclude_NL, np.random.default_rng())


@dataclass
class SortsRows(Uniform):
    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        drawn = super().sample(rows_Q, n, exclude_NL, rng)
        rows_Q.sort()
        return drawn


@dataclass
class NormalisesTheView(Uniform):
    needs_view: ClassVar[bool] = True

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        view.labels_LD.__itruediv__(np.linalg.norm(view.labels_LD, axis=1, keepdims=True))


@dataclass
class Remembers(Uniform):
    """Starts each refresh's lists with a random label that the view decides, and keeps it."""

    needs_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.shift = np.zeros(1, dtype=np.int64)

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        self.shift = np.array([int(1000 * abs(view.labels_LD[0, 0])) + 1])

    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        return super().sample(rows_Q, n, exclude_NL, np.random.default_rng([*self.shift, rng.integers(1000)]))

    def state(self) -> dict[str, Ids]:
        return {"shift": self.shift}

    def load_state(self, arrays: Mapping[str, Ids]) -> None:
        self.shift = arrays["shift"]


@dataclass
class ForgetsItsState(Remembers):
    def load_state(self, arrays: Mapping[str, Ids]) -> None:
        pass


@dataclass
class WritesInPlace(Remembers):
    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        self.shift[0] = int(1000 * abs(view.labels_LD[0, 0])) + (1 if view.labels_LD[0, 0] > 0 else 2)


@dataclass
class AddsUp(Uniform):
    """Leaves out a label for every call of `prepare`."""

    def __post_init__(self) -> None:
        self.calls = 0

    def prepare(self, data: Dataset, exclude_NL: sp.csr_array, keys: Keys) -> None:
        self.calls += 1

    def sample(self, rows_Q: Ids, n: int, exclude_NL: sp.csr_array, rng: np.random.Generator) -> Ids:
        return super().sample(rows_Q, n, exclude_NL, np.random.default_rng([self.calls, rng.integers(1000)]))


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__no_dataclass": NoDataclass,
        "options__default": DefaultOutOfBounds,
        "shape__columns": TooFewColumns,
        "shape__type": ShortIds,
        "shape__before_the_view": NothingBeforeTheView,
        "allowed__anything": AnyLabel,
        "allowed__by_place": ByPlace,
        "enough__replacement": WithReplacement,
        "enough__positives_mined": MinesPositivesToo,
        "pure__own_draws": OwnDraws,
        "repeatable__adds_up": AddsUp,
        "unchanged__rows": SortsRows,
        "unchanged__view": NormalisesTheView,
        "resumed__forgets": ForgetsItsState,
        "resumed__in_place": WritesInPlace,
    }
    return [part("miner", name, cls) for name, cls in classes.items()]
