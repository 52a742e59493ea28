"""The head of SiameseXML and DECAF: a label is its text and a trained vector of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.api import log, option
from xmclab.errors import ConfigError, Problem
from xmclab.model.heads.dual_encoder import DualEncoder
from xmclab.model.tables import RowTable, TableDtype, TableOptimizer


@dataclass(eq=False)
class LabelResidual(DualEncoder):
    """Dual encoder whose labels add a row of a table to their encoded text.

    Formula:  q = normalise(g1(Phi(x))),  z_l = normalise(normalise(g1(Phi(z_l))) + r_l)
              the inner normalise only with `unit_texts`, the outer ones only with `normalise`
    Paper:    SiameseXML (Dahiya et al., ICML 2021): cosines, rows from zero, trained after the encoder.
              DECAF (Mittal et al., WSDM 2021): the sum of text and row, not normalised.
    """

    unit_texts: bool = option(True, "scale texts of labels to unit length before their rows are added")
    rows: Literal["zeros", "normal", "xavier"] = option("zeros", "initial rows: 0, N(0, rows_std) or by Xavier's rule")
    rows_std: float = option(0.02, "standard deviation of rows=normal", gt=0)
    row_lr: float = option(1e-3, "learning rate of the rows", gt=0, search=log(1e-4, 1e-2))
    table: TableOptimizer = option("adamw", "how the touched rows are updated")
    table_dtype: TableDtype = option("float32", "type of the stored rows; bfloat16 halves them, with random rounding")
    table_momentum: float = option(0.9, "share of the velocity that table=momentum keeps", ge=0, lt=1)

    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        if self.project_in != "always":
            what = "rows are added to projected texts, in searches too"
            raise ConfigError(Problem(f"project_in={self.project_in}", what, "use always, or the head dual_encoder"))
        self.num_labels = num_labels
        self.own_rows = RowTable(
            self.count_rows(), self.dim, self.row_lr, self.table, self.table_dtype, self.table_momentum
        )
        if self.rows == "zeros":
            nn.init.zeros_(self.own_rows.weight)
        elif self.rows == "normal":
            nn.init.normal_(self.own_rows.weight, std=self.rows_std)
        else:
            nn.init.xavier_uniform_(self.own_rows.weight)

    def count_rows(self) -> int:
        """Rows of the table."""
        return self.num_labels

    def rows_of(self, labels_P: Tensor) -> Tensor:
        """The row of each label; not of new ones."""
        return labels_P

    def of_texts(self, x_PD: Tensor, labels_P: Tensor) -> Tensor:
        t_PD = super().of_texts(x_PD, labels_P)
        t_PD = F.normalize(t_PD, dim=-1) if self.unit_texts else t_PD
        trained_P1 = (labels_P < self.num_labels).unsqueeze(1)
        r_PD: Tensor = self.own_rows(self.rows_of(labels_P.clamp(max=self.num_labels - 1)))
        return t_PD + r_PD * trained_P1  # new labels are their texts alone
