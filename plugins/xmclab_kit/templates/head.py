"""Two towers: queries and labels each have their own linear map.

Formula:  q = normalise(A Phi(x)),  z_l = normalise(B Phi(z_l))
Where:    Phi the encoder, x the text of a query, z_l that of label l
Use when: the texts of queries and labels differ in kind
"""

from __future__ import annotations

from dataclasses import dataclass

import xmclab
from torch import Tensor, nn
from torch.nn.functional import normalize
from xmclab.api import Head


@dataclass(eq=False)
class PartName(Head):
    """Cosine of query and label, each through its own linear map."""

    labels_from = "text"

    dim: int = xmclab.option(256, "width of the vectors", ge=1)
    temperature: float = xmclab.option(0.1, "divides the cosine in training", gt=0)
    lr: float = xmclab.option(5e-4, "learning rate", gt=0)

    def __post_init__(self) -> None:
        super().__init__()

    def build(self, width: int, num_labels: int) -> None:
        """Make the parameters for an encoder of this width."""
        self.query_map = nn.Linear(width, self.dim)
        self.label_map = nn.Linear(width, self.dim)

    @property
    def score_bound(self) -> float:
        """A cosine is at most 1."""
        return 1.0

    def queries(self, x_BD: Tensor) -> Tensor:
        """q_BD of encoded queries."""
        return normalize(self.query_map(x_BD), dim=-1)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        """z_PD of encoded labels."""
        assert x_PD is not None, "labels are read as texts"
        return normalize(self.label_map(x_PD), dim=-1)
