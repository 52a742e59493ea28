"""Searches that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmclab import hookimpl, option, part
from xmclab.api import LabelSpace, Search

Vectors = Mapping[str, Tensor]
Found = tuple[Tensor, Tensor]
ALL = "all"


@dataclass
class Sum(Search):
    """What the others spoil: the heads one by one, and their sum."""

    def names(self, heads: Sequence[str]) -> tuple[str, ...]:
        return (*heads, ALL)

    def rank(self, name: str, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        if name != ALL:
            return labels.nearest(name, queries, k)
        return self.of_all(queries, labels, k)

    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return labels.nearest("+".join(labels.heads), queries, k)


@dataclass
class Centred(Sum):
    """The same, with queries relative to the mean of the training queries."""

    reads_training_queries = True

    def fit(self, queries: Vectors, targets_NL: sp.csr_array) -> None:
        self.means = {head: q_ND.mean(dim=0) for head, q_ND in queries.items()}

    def save(self, folder: Path) -> None:
        torch.save(self.means, folder / "means.pt")

    def load(self, folder: Path, device: torch.device) -> None:
        self.means = torch.load(folder / "means.pt", device)

    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return super().of_all({head: q_ND - self.means[head] for head, q_ND in queries.items()}, labels, k)


class NoDataclass(Sum):
    pass


@dataclass
class DefaultOutOfBounds(Sum):
    share: float = option(2.0, "weight of the second head", le=1)


@dataclass
class OneNameTwice(Sum):
    def names(self, heads: Sequence[str]) -> tuple[str, ...]:
        return (*heads, "+".join(heads))


@dataclass
class OnlyForTwo(Sum):
    def names(self, heads: Sequence[str]) -> tuple[str, ...]:
        return (ALL,) if len(heads) > 1 else ()


@dataclass
class OneMore(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return super().of_all(queries, labels, k + 1)


@dataclass
class DoubleScores(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        ids_NK, scores_NK = super().of_all(queries, labels, k)
        return ids_NK, scores_NK.double()


@dataclass
class Noise(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return super().of_all({head: q_ND + torch.rand_like(q_ND) for head, q_ND in queries.items()}, labels, k)


@dataclass
class Warming(Sum):
    def __post_init__(self) -> None:
        self.calls = 0

    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        self.calls += 1
        return super().of_all({head: q_ND * self.calls for head, q_ND in queries.items()}, labels, k)


@dataclass
class InTurns(Sum):
    """The best of each head, in turns."""

    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        ids, scores = zip(*(labels.nearest(head, queries, k) for head in labels.heads), strict=True)
        return torch.stack(ids, dim=2).flatten(1)[:, :k], torch.stack(scores, dim=2).flatten(1)[:, :k]


@dataclass
class HidesTheFirst(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        ids_NK, scores_NK = super().of_all(queries, labels, k)
        return ids_NK.masked_fill(ids_NK == 0, -1), scores_NK


@dataclass
class FromOne(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        ids_NK, scores_NK = super().of_all(queries, labels, k)
        return torch.where(ids_NK < 0, -1, ids_NK + 1), scores_NK


@dataclass
class Distances(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        ids_NK, scores_NK = super().of_all(queries, labels, k)
        return ids_NK, 1 - scores_NK


@dataclass
class LargeIdsFirst(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        ids_NK, scores_NK = (x_NK.flip(1) for x_NK in super().of_all(queries, labels, k))
        scores_NK, order_NK = scores_NK.sort(dim=1, descending=True, stable=True)
        return ids_NK.gather(1, order_NK), scores_NK


@dataclass
class ZeroByZero(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return super().of_all(
            {head: q_ND / q_ND.norm(dim=1, keepdim=True) for head, q_ND in queries.items()}, labels, k
        )


@dataclass
class RanksAgain(Sum):
    """The k best, ranked again with a bonus."""

    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        ids_NK, scores_NK = super().of_all(queries, labels, k)
        ids_NK, order_NK = ids_NK.sort(dim=1)
        scores_NK, again_NK = (scores_NK.gather(1, order_NK) + ids_NK).sort(dim=1, descending=True, stable=True)
        return ids_NK.gather(1, again_NK), scores_NK


@dataclass
class AlwaysAll(Sum):
    def rank(self, name: str, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return self.of_all(queries, labels, k)


@dataclass
class AlwaysCentred(Centred):
    def rank(self, name: str, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return super().rank(name, {head: q_ND - self.means[head] for head, q_ND in queries.items()}, labels, k)


@dataclass
class CentredInTheBlock(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return super().of_all({head: q_ND - q_ND.mean(dim=0) for head, q_ND in queries.items()}, labels, k)


@dataclass
class DoublesQueries(Sum):
    def of_all(self, queries: Vectors, labels: LabelSpace, k: int) -> Found:
        return super().of_all({head: q_ND.mul_(2) for head, q_ND in queries.items()}, labels, k)


@dataclass
class CountsTargets(Centred):
    def fit(self, queries: Vectors, targets_NL: sp.csr_array) -> None:
        super().fit(queries, targets_NL)
        targets_NL.data /= np.bincount(targets_NL.indices)[targets_NL.indices] + 1


@dataclass
class CoarseMeans(Centred):
    def save(self, folder: Path) -> None:
        torch.save({head: mean_D.round() for head, mean_D in self.means.items()}, folder / "means.pt")


@dataclass
class WritesItsName(Sum):
    def save(self, folder: Path) -> None:
        (folder / "name.txt").write_text(ALL)


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__no_dataclass": NoDataclass,
        "options__default": DefaultOutOfBounds,
        "names__twice": OneNameTwice,
        "names__none": OnlyForTwo,
        "shape__columns": OneMore,
        "shape__type": DoubleScores,
        "pure__noise": Noise,
        "pure__state": Warming,
        "ids__twice": InTurns,
        "ids__padding": HidesTheFirst,
        "ids__from_one": FromOne,
        "order__distances": Distances,
        "order__ties": LargeIdsFirst,
        "order__not_finite": ZeroByZero,
        "cut__ranks_again": RanksAgain,
        "heads__always_all": AlwaysAll,
        "heads__always_centred": AlwaysCentred,
        "blocks__centred": CentredInTheBlock,
        "unchanged__queries": DoublesQueries,
        "unchanged__targets": CountsTargets,
        "saved__coarse": CoarseMeans,
        "saved__nothing_to_save": WritesItsName,
    }
    return [part("search", name, cls) for name, cls in classes.items()]
