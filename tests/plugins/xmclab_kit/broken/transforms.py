"""Transforms that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmclab import hookimpl, option, part
from xmclab.api import Dataset, Split, Transform


@dataclass
class Same(Transform):
    """What the others spoil."""

    def apply(self, data: Dataset) -> Dataset:
        return replace(data, train=replace(data.train, **self.changes(data.train)))

    def changes(self, train: Split) -> dict[str, Any]:
        return {}


@dataclass
class Abstract(Transform):
    pass


@dataclass
class DefaultOutOfBounds(Same):
    share: float = option(2.0, "of the queries", le=1)


@dataclass
class ForgetsNames(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        return {"texts": [*train.texts, "one more"]}


@dataclass
class ForgetsFilters(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        targets_NL = sp.csr_array(sp.vstack([train.targets_NL, train.targets_NL]))
        return {"texts": [*train.texts] * 2, "names": [*train.names] * 2, "targets_NL": targets_NL}


@dataclass
class Returns(Same):
    def apply(self, data: Dataset) -> Dataset:
        return super().apply(data).train  # type: ignore[return-value]


@dataclass
class Unsorted(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        matrix = train.targets_NL
        twice = np.repeat(matrix.indices, 2)
        return {"targets_NL": sp.csr_array((np.repeat(matrix.data, 2), twice, 2 * matrix.indptr), matrix.shape)}


@dataclass
class Doubles(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        return {"targets_NL": train.targets_NL.astype(np.float64)}


@dataclass
class Zeros(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        return {"targets_NL": sp.csr_array(train.targets_NL * np.float32(0))}


@dataclass
class Nothing(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        return {"targets_NL": sp.csr_array(train.targets_NL.shape, dtype=np.float32)}


@dataclass
class ChangesTheTest(Same):
    def apply(self, data: Dataset) -> Dataset:
        return replace(super().apply(data), test=data.train)


@dataclass
class RenamesLabels(Same):
    def apply(self, data: Dataset) -> Dataset:
        return replace(super().apply(data), label_texts=[text.upper() for text in data.label_texts])


@dataclass
class CountsItsCalls(Same):
    calls: int = dataclasses.field(default=0, init=False)

    def changes(self, train: Split) -> dict[str, Any]:
        self.calls += 1
        return {"names": [f"{name} {self.calls}" for name in train.names]}


@dataclass
class OwnDraws(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        return {"names": [f"{np.random.default_rng().random()}" for _ in train.names]}


@dataclass
class WritesIntoTargets(Same):
    def changes(self, train: Split) -> dict[str, Any]:
        train.targets_NL.data *= np.float32(0.5)
        return {"targets_NL": sp.csr_array(train.targets_NL, copy=True)}


@dataclass
class WritesIntoLabels(Same):
    def apply(self, data: Dataset) -> Dataset:
        data.label_texts[0] = "spoiled"  # type: ignore[index]
        return super().apply(data)


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__abstract": Abstract,
        "options__default": DefaultOutOfBounds,
        "shape__names": ForgetsNames,
        "shape__filters": ForgetsFilters,
        "shape__type": Returns,
        "shape__twice": Unsorted,
        "targets__doubles": Doubles,
        "targets__zeros": Zeros,
        "targets__nothing": Nothing,
        "only_train__test": ChangesTheTest,
        "only_train__labels": RenamesLabels,
        "pure__calls": CountsItsCalls,
        "pure__own_draws": OwnDraws,
        "unchanged__targets": WritesIntoTargets,
        "unchanged__labels": WritesIntoLabels,
    }
    return [part("transform", name, cls) for name, cls in classes.items()]
