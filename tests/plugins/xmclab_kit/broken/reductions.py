"""Reductions that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from xmclab import hookimpl, part
from xmclab.api import Reduction
from xmclab.objectives.reductions.ova import Ova


@dataclass
class All(Reduction):
    """What the others spoil: every positive by its target."""

    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP


class NoDataclass(All):
    pass


@dataclass
class Untyped(All):
    share: float = "all"  # type: ignore[assignment]


@dataclass
class NeedsSome(All):
    needs = "some"  # type: ignore[assignment]


@dataclass
class AmongMined(All):
    among = "mined"  # type: ignore[assignment]


@dataclass
class PerAnchor(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP.sum(dim=1, keepdim=True)


@dataclass
class DividesByNone(All):
    def normaliser(self, w_QP: Tensor) -> Tensor:
        return (w_QP > 0).sum()


@dataclass
class OwnDraws(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP * torch.from_numpy(np.random.default_rng().random(y_QP.shape)).to(y_QP.dtype)


@dataclass
class NormalisesInPlace(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP.div_(y_QP.sum(dim=1, keepdim=True).clamp(min=0.01))


@dataclass
class WeighsNegatives(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP + 0.1 * (y_QP == 0)


@dataclass
class DividesByZero(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP / y_QP.sum(dim=1, keepdim=True)

    def normaliser(self, w_QP: Tensor) -> Tensor:
        return w_QP.new_full((), len(w_QP))


@dataclass
class BelowZero(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return -y_QP


@dataclass
class Smoothed(All):
    def targets(self, y_QP: Tensor) -> Tensor:
        return 0.9 * y_QP + 0.05


@dataclass
class NotOne(All):
    adds_up_to = "one"


@dataclass
class Undeclared(All):
    adds_up_to: ClassVar[str] = "two"  # type: ignore[misc]


@dataclass
class OverTheBatch(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP / y_QP.sum().clamp(min=0.01)


@dataclass
class OverAllColumns(All):
    def weights(self, y_QP: Tensor) -> Tensor:
        return y_QP / y_QP.shape[1]


@dataclass
class CountsColumns(All):
    def normaliser(self, w_QP: Tensor) -> Tensor:
        return w_QP.new_tensor(float(w_QP.numel()))


@dataclass
class SumForMean(Ova):
    def cell_weight(self, cells: int) -> float:
        return 1.0


@dataclass
class DrawnCells(Ova):
    among = "drawn"


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__no_dataclass": NoDataclass,
        "options__untyped": Untyped,
        "family__some": NeedsSome,
        "family__mined": AmongMined,
        "shape__anchor": PerAnchor,
        "shape__normaliser": DividesByNone,
        "repeatable__own_draws": OwnDraws,
        "unchanged__in_place": NormalisesInPlace,
        "allowed__negatives": WeighsNegatives,
        "allowed__no_number": DividesByZero,
        "allowed__below_zero": BelowZero,
        "zero_stays__smoothed": Smoothed,
        "sums__not_one": NotOne,
        "sums__undeclared": Undeclared,
        "alone__batch": OverTheBatch,
        "columns__all": OverAllColumns,
        "columns__normaliser": CountsColumns,
        "cell_weight__sum": SumForMean,
        "drawn__cells": DrawnCells,
        "expression-dash": All,
    }
    return [part("reduction", name, cls) for name, cls in classes.items()]
