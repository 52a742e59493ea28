"""Heads that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize, pad

from xmclab import hookimpl, option, part
from xmclab.api import Head
from xmclab.model.heads.classifier import Classifier


@dataclass(eq=False)
class Rows(Head):
    """What the others spoil: a linear map of queries, a trained row per label."""

    labels_from = "table"

    dim: int = option(4, "width of the vectors", ge=1)
    temperature: float = option(0.1, "divides the inner product", gt=0)
    lr: float = option(1e-2, "learning rate", gt=0)

    def __post_init__(self) -> None:
        super().__init__()

    def build(self, width: int, num_labels: int) -> None:
        self.linear = nn.Linear(width, self.dim)
        self.rows = nn.Parameter(torch.randn(num_labels, self.dim))

    def queries(self, x_BD: Tensor) -> Tensor:
        q_BD: Tensor = self.linear(x_BD)
        return q_BD

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return self.rows[labels_P]


@dataclass
class Unhashable(Rows):
    pass


@dataclass(eq=False)
class DefaultOutOfBounds(Rows):
    dropout: float = option(1.0, "share of the projection dropped in training", lt=1)


@dataclass(eq=False)
class FromNowhere(Rows):
    labels_from = "rows"  # type: ignore[assignment]


@dataclass(eq=False)
class TwoWidths(Rows):
    def queries(self, x_BD: Tensor) -> Tensor:
        return torch.cat([super().queries(x_BD), x_BD[:, :1]], dim=1)


@dataclass(eq=False)
class AlwaysDrops(Rows):
    def queries(self, x_BD: Tensor) -> Tensor:
        return dropout(super().queries(x_BD), 0.5)


@dataclass(eq=False)
class CentredQueries(Rows):
    def queries(self, x_BD: Tensor) -> Tensor:
        q_BD = super().queries(x_BD)
        return q_BD - q_BD.mean(dim=0)


@dataclass(eq=False)
class RowsByPlace(Rows):
    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return self.rows[: len(labels_P)]


@dataclass(eq=False)
class TextByPlace(Rows):
    labels_from = "text"

    def build(self, width: int, num_labels: int) -> None:
        self.linear = nn.Linear(width, self.dim)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        assert x_PD is not None
        return self.queries(x_PD) + torch.arange(len(labels_P)).unsqueeze(1)


@dataclass(eq=False)
class UnusedLayer(Rows):
    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        self.gate = nn.Linear(width, 1)


@dataclass(eq=False)
class DetachedRows(Rows):
    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return super().labels(x_PD, labels_P).detach()


@dataclass(eq=False)
class NoSay(UnusedLayer):
    def queries(self, x_BD: Tensor) -> Tensor:
        return super().queries(x_BD) + 0 * self.gate(x_BD)


@dataclass(eq=False)
class DropsAfterNormalising(Rows):
    @property
    def score_bound(self) -> float:
        return 1.0

    def queries(self, x_BD: Tensor) -> Tensor:
        return dropout(normalize(super().queries(x_BD), dim=1), 0.5, self.training)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return normalize(super().labels(x_PD, labels_P), dim=1)


@dataclass(eq=False)
class ScaleOutsideTheState(Rows):
    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        self.scale = float(torch.rand(()))

    def queries(self, x_BD: Tensor) -> Tensor:
        return self.scale * super().queries(x_BD)


@dataclass(eq=False)
class MeansOfNone(Rows):
    @property
    def starts_from_texts(self) -> bool:
        return True

    @torch.no_grad()
    def start(self, x_ND: Tensor, x_LD: Tensor, targets_NL: sp.csr_array) -> None:
        positives_LN = torch.from_numpy(targets_NL.toarray()).T
        self.rows.copy_(positives_LN @ self.linear(x_ND) / positives_LN.sum(dim=1, keepdim=True))


@dataclass(eq=False)
class OtherRows(Classifier):
    def of_rows(self, rows_PD: Tensor) -> Tensor:
        return 2 * super().of_rows(rows_PD)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return super().of_rows(self.psi(labels_P))


@dataclass(eq=False)
class Embedding(Rows):
    @property
    def label_rows(self) -> nn.Module:
        return nn.Embedding.from_pretrained(self.rows.detach())

    def of_rows(self, rows_PD: Tensor) -> Tensor:
        return rows_PD


@dataclass(eq=False)
class LayerOnRows(Classifier):
    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        self.layer = nn.Linear(self.dim, self.dim)

    def of_rows(self, rows_PD: Tensor) -> Tensor:
        return super().of_rows(self.layer(rows_PD))


@dataclass(eq=False)
class TwoBiases(Rows):
    def search_labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return pad(super().search_labels(x_PD, labels_P), (0, 2))


@dataclass(eq=False)
class CentredLabels(Rows):
    def search_labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        z_PD = super().search_labels(x_PD, labels_P)
        return z_PD - z_PD.mean(dim=0)


@dataclass(eq=False)
class BiasOfTrainedLabels(Rows):
    labels_from = "text"

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        assert x_PD is not None
        return self.queries(x_PD) + self.rows[labels_P]


@dataclass(eq=False)
class LogOfNone(Rows):
    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        self.register_buffer("bonus_L", torch.zeros(num_labels))

    def count(self, targets_NL: sp.csr_array) -> None:
        self.bonus_L = torch.from_numpy(targets_NL.sum(axis=0)).log()

    def search_labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return torch.cat([super().search_labels(x_PD, labels_P), self.bonus_L[labels_P].unsqueeze(1)], dim=1)


@dataclass(eq=False)
class CountsOutsideTheState(Rows):
    counted = 0

    def count(self, targets_NL: sp.csr_array) -> None:
        self.counted = targets_NL.nnz

    def search_labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return pad(super().search_labels(x_PD, labels_P), (0, 1), value=self.counted)


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__unhashable": Unhashable,
        "options__default": DefaultOutOfBounds,
        "builds__from_nowhere": FromNowhere,
        "shape__widths": TwoWidths,
        "repeatable__dropout": AlwaysDrops,
        "query_chunks__centred": CentredQueries,
        "label_rows__table": RowsByPlace,
        "label_rows__text": TextByPlace,
        "search__widths": TwoBiases,
        "search__centred": CentredLabels,
        "search__new_labels": BiasOfTrainedLabels,
        "table__other": OtherRows,
        "table__embedding": Embedding,
        "table__layer": LayerOnRows,
        "gradients__unused": UnusedLayer,
        "gradients__detached": DetachedRows,
        "gradients__zeros": NoSay,
        "bound__dropout": DropsAfterNormalising,
        "state__scale": ScaleOutsideTheState,
        "count__log_of_none": LogOfNone,
        "count__outside_the_state": CountsOutsideTheState,
        "start__means_of_none": MeansOfNone,
    }
    return [part("head", name, cls) for name, cls in classes.items()]
