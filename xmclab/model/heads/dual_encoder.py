"""The dual-encoder head: queries and labels through the same projection of their encoded texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.api import Head, option
from xmclab.model.heads.projection import ProjectionInit, projection


@dataclass(eq=False)
class DualEncoder(Head):
    """Dual encoder: g1 = linear, activation, dropout, then unit length; labels are encoded texts.

    Formula:  q = normalise(g1(Phi(x))),  z_l = normalise(g1(Phi(z_l)))
    Paper:    UniDEC (Kharbanda et al., WWW 2025), DE head; without a classifier head: DePSL.
    """

    labels_from = "text"

    dim: int = option(384, "width of the vectors", ge=1)
    activation: Literal["tanh", "none"] = option("tanh", "activation between the linear map and the dropout")
    dropout: float = option(0.1, "share of the projection dropped in training", ge=0, lt=1)
    init: ProjectionInit = option("default", "initial linear map: torch's default, or the identity")
    temperature: float = option(1 / 18, "divides the cosine in training", gt=0)
    lr: float = option(2e-4, "learning rate of the projection", gt=0)

    def __post_init__(self) -> None:
        super().__init__()

    def build(self, width: int, num_labels: int) -> None:
        activation = [nn.Tanh()] if self.activation == "tanh" else []
        self.g1 = nn.Sequential(projection(width, self.dim, self.init), *activation, nn.Dropout(self.dropout))

    @property
    def score_bound(self) -> float:
        return 1.0

    def query_projection(self) -> tuple[nn.Linear, Literal["tanh", "none"]]:
        return cast(nn.Linear, self.g1[0]), self.activation

    def queries(self, x_BD: Tensor) -> Tensor:
        return F.normalize(self.g1(x_BD), dim=-1)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        assert x_PD is not None, "the dual encoder reads label texts"
        return self.queries(x_PD)
