"""The dual-encoder head: queries and labels through the same projection of their encoded texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.api import one_of, option
from xmclab.model.dropout import KeyedDropout
from xmclab.model.heads.projected import ProjectedHead, linear_map, projection
from xmclab.model.tables import RowTable


@dataclass(eq=False)
class DualEncoder(ProjectedHead):
    """Dual encoder: g1 = projection, activation, dropout, then unit length; labels are encoded texts.

    Formula:  q = normalise(g1(Phi(x))),  z_l = normalise(g1(Phi(z_l)))
              without `normalise`, their lengths stay; with a bias, q has a 1 and z_l its bias at the end
    Paper:    UniDEC (Kharbanda et al., WWW 2025), DE head; without a classifier head: DePSL.
    """

    labels_from = "text"

    activation: Literal["tanh", "none", "layer_norm"] = option("tanh", "between the projection and the dropout")
    normalise: bool = option(True, "train on cosines; false: inner products, also in searches")
    project_in: Literal["always", "training"] = option(
        "always", "training: the projection, activation and dropout are left out of searches"
    )
    bias: Literal["none", "mean", "label", "prior"] = option(  # type: ignore[assignment]
        "none",
        "bias per label: learnt from the log-odds of the mean frequency or the label's own, or prior: fixed",
        search=one_of("none", "label"),
    )
    bias_lr: float = option(1e-2, "learning rate of the biases", gt=0)

    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        parts = [projection(width, self.dim, self.projection, self.init)]
        if self.activation != "none":
            parts.append(nn.Tanh() if self.activation == "tanh" else nn.LayerNorm(self.dim))
        self.g1 = nn.Sequential(*parts, KeyedDropout(self.dropout))
        if self.bias != "none":
            self.offset = RowTable(num_labels, 1, lr=self.bias_lr)
            self.offset.weight.requires_grad_(self.bias != "prior")
            nn.init.zeros_(self.offset.weight)
            self.register_buffer("offset_of_new", torch.zeros(()))

    @property
    def score_bound(self) -> float:
        return self.largest_score if self.normalise else math.inf

    @property
    def searched_at_unit_length(self) -> bool:
        given = self.normalise_at_search is not None
        return super().searched_at_unit_length if given or self.normalise else False

    @torch.no_grad()
    def count(self, targets_NL: sp.csr_array) -> None:
        super().count(targets_NL)
        if self.bias != "none":
            *_, offset_of_new = prior_L = self.prior(targets_NL)
            self.offset.weight[:, 0] = prior_L[:-1]
            self.get_buffer("offset_of_new").copy_(offset_of_new)

    def query_projection(self) -> tuple[nn.Linear, Literal["tanh", "none"]] | None:
        projects = self.project_in == "always"
        linear = linear_map(self.g1[0] if projects else nn.Identity(), self.width)
        if linear is None or self.bias != "none" or self.rescales(self.normalise):
            return None
        activation = self.activation if projects else "none"
        return None if activation == "layer_norm" else (linear, activation)

    def queries(self, x_BD: Tensor) -> Tensor:
        q_BD = self.projected(x_BD)
        q_BD = F.normalize(q_BD, dim=-1) if self.normalise else q_BD
        q_BD = self.sharpened(q_BD) if self.learn_temperature else q_BD
        return q_BD if self.bias == "none" else F.pad(q_BD, (0, 1), value=1.0)

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        assert x_PD is not None, "the dual encoder reads label texts"
        z_PD = self.of_texts(x_PD, labels_P)
        z_PD = F.normalize(z_PD, dim=-1) if self.normalise else z_PD
        return z_PD if self.bias == "none" else torch.cat([z_PD, self._biases(labels_P)], dim=1)

    def of_texts(self, x_PD: Tensor, labels_P: Tensor) -> Tensor:
        """z_PD before it is normalised; for subclasses, whose labels may be more than their texts."""
        return self.projected(x_PD)

    def projected(self, x_BD: Tensor) -> Tensor:
        """g1, where it is used."""
        v_BD: Tensor = self.g1(x_BD) if self.training or self.project_in == "always" else x_BD
        return v_BD

    def _biases(self, labels_P: Tensor) -> Tensor:
        """[P, 1] those of these labels; ids from L on are new labels."""
        old_P = labels_P < len(self.offset.weight)
        bias_P1 = self.offset(labels_P.clamp(max=len(self.offset.weight) - 1), distinct=self.training)
        return self.limited(torch.where(old_P[:, None], bias_P1, self.get_buffer("offset_of_new")))
