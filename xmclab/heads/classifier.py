"""The classifier head: a projected query against a trained vector per label."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.api import Head, option
from xmclab.heads.projection import ProjectionInit, projection
from xmclab.tables import RowTable, TableOptimizer


@dataclass(eq=False)
class Classifier(Head):
    """Per-label classifiers: g2 = linear, dropout on the query; labels are rows of a table.

    Formula:  q = g2(Phi(x)),  z_l = dropout(Psi_l)
    Paper:    UniDEC (Kharbanda et al., WWW 2025), CLF head.
    """

    labels_from = "table"

    dim: int = option(384, "width of the vectors", ge=1)
    dropout: float = option(0.1, "share of the projection dropped in training", ge=0, lt=1)
    row_dropout: float = option(0.1, "share of the label rows' numbers dropped in training", ge=0, lt=1)
    init: ProjectionInit = option("default", "of the linear map: torch's default, or the identity")
    temperature: float = option(1 / 18, "divides the inner product in training", gt=0)
    lr: float = option(2e-4, "learning rate of the projection", gt=0)
    table: TableOptimizer = option("adamw", "how the touched rows of the table are updated")
    table_lr: float = option(1e-3, "learning rate of the table", gt=0)

    def __post_init__(self) -> None:
        super().__init__()

    def build(self, width: int, num_labels: int) -> None:
        self.g2 = nn.Sequential(projection(width, self.dim, self.init), nn.Dropout(self.dropout))
        self.psi = RowTable(num_labels, self.dim, lr=self.table_lr, optimizer=self.table)
        nn.init.xavier_uniform_(self.psi.weight)

    def queries(self, x_BD: Tensor) -> Tensor:
        return self.g2(x_BD)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return F.dropout(self.psi(labels_P), self.row_dropout, self.training)
