"""The classifier head: a projected query against a trained vector per label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.api import log, option
from xmclab.model.dropout import KeyedDropout
from xmclab.model.heads.projected import STD, ProjectedHead, linear_map, projection
from xmclab.model.tables import RowTable, TableDtype, TableOptimizer

LABELS_AT_ONCE = 1 << 16  # labels whose initial rows are made together


@dataclass(eq=False)
class Classifier(ProjectedHead):
    """Per-label classifiers: g2 = projection, dropout on the query; labels are rows of a table.

    Formula:  q = g2(Phi(x)),  z_l = dropout(Psi_l);  with `normalise`, both at unit length
              with a bias, q has a 1 and z_l its bias at the end, the last number of its row
    Paper:    UniDEC (Kharbanda et al., WWW 2025), CLF head: not normalised in training, rows drawn by Xavier's rule.
    """

    labels_from = "table"

    row_dropout: float = option(0.1, "share of the label rows' numbers dropped in training", ge=0, lt=1)
    normalise: bool = option(False, "train on cosines instead of inner products")
    rows: Literal["xavier", "normal", "default", "texts", "texts+queries"] = option(
        "xavier",
        "initial rows: random by Xavier's rule, N(0, rows_std) or torch's default of a linear layer; the label's text, "
        "or that plus the mean of its training queries (both projected)",
    )
    rows_std: float = option(STD, "standard deviation of rows=normal", gt=0)
    table: TableOptimizer = option("adamw", "how the touched rows of the table are updated")
    table_dtype: TableDtype = option("float32", "type of the stored rows; bfloat16 halves them, with random rounding")
    table_lr: float = option(1e-3, "learning rate of the table", gt=0, search=log(1e-3, 1e-1))
    table_momentum: float = option(0.9, "share of the velocity that table=momentum keeps", ge=0, lt=1)

    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        self.g2 = nn.Sequential(projection(width, self.dim, self.projection, self.init), KeyedDropout(self.dropout))
        self.drop_rows = KeyedDropout(self.row_dropout)
        numbers = self.dim + (self.bias != "none")
        self.psi = RowTable(
            num_labels, numbers, self.table_lr, self.table, self.table_dtype, momentum=self.table_momentum
        )
        self._draw(self.psi.weight[:, : self.dim])
        nn.init.zeros_(self.psi.weight[:, self.dim :])

    def _draw(self, rows_LD: Tensor) -> None:
        """Initial rows, until texts replace them."""
        if self.rows == "normal":
            nn.init.normal_(rows_LD, std=self.rows_std)
        elif self.rows == "default":
            nn.init.uniform_(rows_LD, -1 / math.sqrt(self.dim), 1 / math.sqrt(self.dim))
        else:
            nn.init.xavier_uniform_(rows_LD)

    @property
    def score_bound(self) -> float:
        return self.largest_score if self.normalise else math.inf

    @property
    def starts_from_texts(self) -> bool:
        return self.rows in ("texts", "texts+queries")

    @torch.no_grad()
    def count(self, targets_NL: sp.csr_array) -> None:
        super().count(targets_NL)
        if self.bias != "none":
            self.psi.weight[:, -1] = self.prior(targets_NL)[:-1].to(self.psi.weight)

    @torch.no_grad()
    def start(self, x_ND: Tensor, x_LD: Tensor, targets_NL: sp.csr_array) -> None:
        with_queries = self.rows == "texts+queries"
        if with_queries:
            queries_ND = F.normalize(self.g2[0](x_ND), dim=-1).cpu().numpy()
            positives_LN = sp.csr_array(targets_NL.astype(bool).astype("float32").T)
        for start in range(0, len(x_LD), LABELS_AT_ONCE):
            block = slice(start, start + LABELS_AT_ONCE)
            rows_BD = F.normalize(self.g2[0](x_LD[block]), dim=-1)
            if with_queries:
                means_BD = torch.from_numpy(positives_LN[block] @ queries_ND).to(x_LD.device)
                rows_BD = F.normalize(rows_BD + F.normalize(means_BD, dim=-1), dim=-1)
            self.psi.weight[block, : self.dim] = rows_BD.to(self.psi.weight)

    def queries(self, x_BD: Tensor) -> Tensor:
        q_BD: Tensor = self.g2(x_BD)
        q_BD = F.normalize(q_BD, dim=-1) if self.normalise else q_BD
        q_BD = self.sharpened(q_BD) if self.learn_temperature else q_BD
        return q_BD if self.bias == "none" else F.pad(q_BD, (0, 1), value=1.0)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return self.of_rows(self.psi(labels_P, distinct=True))

    @property
    def label_rows(self) -> RowTable:
        return self.psi

    def query_projection(self) -> tuple[nn.Linear, Literal["tanh", "none"]] | None:
        linear = linear_map(self.g2[0], self.width)
        more = self.bias != "none" or self.rescales(self.normalise)
        return None if linear is None or more else (linear, "none")

    def of_rows(self, rows_PD: Tensor) -> Tensor:
        z_PD = rows_PD if self.bias == "none" else rows_PD[:, :-1]
        z_PD = self.drop_rows(z_PD)
        z_PD = F.normalize(z_PD, dim=-1) if self.normalise else z_PD
        return z_PD if self.bias == "none" else torch.cat([z_PD, self.limited(rows_PD[:, -1:])], dim=1)
