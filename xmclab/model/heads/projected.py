"""What the built-in heads share: a projection, a temperature, a bias per label, and how they are searched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from xmclab.api import Head, log, one_of, option
from xmclab.errors import ConfigError, Problem

Projection = Literal["linear", "residual", "none"]
ProjectionInit = Literal["default", "identity", "xavier", "normal"]
STD = 0.02  # of normal weights
LARGEST_BIAS = 20.0  # divided by the temperature, as a logit: the odds of 2e-9
LARGEST_FACTOR = 4.0  # of a learnt temperature


@dataclass(eq=False)
class ProjectedHead(Head):
    """A projection of the encoder's vectors. A score may have a learnt temperature and a bias of its label.

    Formula:  s_il = (f <q, z_l> + b_l) / temperature,  f learnt from 1
    """

    dim: int = option(384, "width of the vectors; 0: that of the encoder", ge=0)
    projection: Projection = option("linear", "linear: W x + b; residual: x + relu(W x + b); none: x, as encoded")
    dropout: float = option(0.1, "share of the projection dropped in training", ge=0, lt=1)
    init: ProjectionInit = option(
        "default",
        f"initial W: torch's default, the identity, Xavier-uniform or N(0, {STD:g}); b starts at 0, save by default",
    )
    temperature: float = option(1 / 18, "divides the scores in training", gt=0, search=log(0.03, 0.3))
    learn_temperature: bool = option(False, f"learn the temperature, up to a factor of {LARGEST_FACTOR:g}")
    bias: Literal["none", "mean", "label"] = option(
        "none",
        "learnt bias per label, from the log-odds of the mean label frequency, or of the label's own",
        search=one_of("none", "label"),
    )
    popularity: float = option(0.0, "times ln(1 + training queries of the label): added to its score in searches", ge=0)
    normalise_at_search: bool | None = option(
        None,
        "search at unit length, apart from the bias; none: if there is no bias, and a dual encoder was trained so",
    )
    lr: float = option(2e-4, "learning rate of the projection and the temperature", gt=0)

    def __post_init__(self) -> None:
        super().__init__()

    def build(self, width: int, num_labels: int) -> None:
        """Settle the width of the vectors and the bound of their scores; create what other options need.

        Raises:
            ConfigError: the projection needs another `dim`.
        """
        if self.projection != "linear" and self.dim not in (0, width):
            keeps = f"projection={self.projection} keeps the width of the encoder, {width}"
            raise ConfigError(Problem(f"dim={self.dim}", keeps, "set it to 0"))
        self.width, self.dim = width, self.dim or width
        bias = LARGEST_BIAS * self.temperature if self.bias != "none" else 0.0
        self.largest_score = (LARGEST_FACTOR if self.learn_temperature else 1.0) + bias
        if self.learn_temperature:
            self.log_factor = nn.Parameter(torch.zeros(()))
        if self.popularity:
            self.register_buffer("count_L", torch.zeros(num_labels))

    def count(self, targets_NL: sp.csr_array) -> None:
        if self.popularity:
            self.get_buffer("count_L").copy_(torch.from_numpy(counts(targets_NL)))

    def prior(self, targets_NL: sp.csr_array) -> Tensor:
        """[L + 1] Initial biases: the temperature times the log-odds of a label; the last one is for new labels."""
        count_L = np.append(counts(targets_NL), 0)
        if self.bias == "mean":
            count_L = np.full(len(count_L), targets_NL.nnz / max(targets_NL.shape[1], 1))
        share_L = (count_L + 0.5) / (targets_NL.shape[0] + 1)  # half a query more, so that no odds are 0
        return self.limited(torch.from_numpy(self.temperature * np.log(share_L / (1 - share_L))).float())

    def limited(self, bias_P: Tensor) -> Tensor:
        """Biases within the range of `largest_score`."""
        largest = LARGEST_BIAS * self.temperature
        return bias_P.clamp(-largest, largest)

    def sharpened(self, q_BD: Tensor) -> Tensor:
        """Query vectors times the learnt factor."""
        return q_BD * self.log_factor.clamp(-math.log(LARGEST_FACTOR), math.log(LARGEST_FACTOR)).exp()

    def rescales(self, normalise: bool) -> bool:
        """Whether searched queries have another length than the projection, and not unit length."""
        return not self.searched_at_unit_length and (normalise or self.learn_temperature)

    def search_queries(self, x_BD: Tensor) -> Tensor:
        q_BD = self.queries(x_BD).float()
        return self._as_searched(q_BD if self.bias == "none" else q_BD[:, :-1])

    def search_labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        z_PD = self.labels(x_PD, labels_P).float()
        z_PD, bias_P1 = z_PD.tensor_split([z_PD.shape[1] - (self.bias != "none")], dim=1)
        if self.popularity:
            bonus_P1 = self.popularity * padded(self.get_buffer("count_L"), labels_P, 0.0).log1p().unsqueeze(1)
            bias_P1 = bonus_P1 if self.bias == "none" else bias_P1 + bonus_P1
        return torch.cat([self._as_searched(z_PD), bias_P1], dim=1)

    def _as_searched(self, v_BD: Tensor) -> Tensor:
        return F.normalize(v_BD, dim=-1) if self.searched_at_unit_length else v_BD

    @property
    def searched_at_unit_length(self) -> bool:
        return self.bias == "none" if self.normalise_at_search is None else self.normalise_at_search


def counts(targets_NL: sp.csr_array) -> NDArray[np.int64]:
    """[L] the number of training queries of each label."""
    return np.bincount(targets_NL.indices, minlength=targets_NL.shape[1])


def padded(x_L: Tensor, labels_P: Tensor, new: float | Tensor) -> Tensor:
    """[P] the values of these labels, that of new labels for ids from L on."""
    return torch.where(labels_P < len(x_L), x_L[labels_P.clamp(max=len(x_L) - 1)], new)


class Residual(nn.Module):
    """x + relu(W x + b)"""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD + F.relu(self.linear(x_BD))


def projection(width: int, dim: int, kind: Projection, init: ProjectionInit) -> nn.Module:
    """A projection; the linear map of `identity` is the (rectangular) identity, so that it begins as the encoder."""
    if kind == "none":
        return nn.Identity()
    linear = nn.Linear(width, dim)
    if init == "identity":
        nn.init.eye_(linear.weight)
    elif init == "xavier":
        nn.init.xavier_uniform_(linear.weight)
    elif init == "normal":
        nn.init.normal_(linear.weight, std=STD)
    if init != "default":
        nn.init.zeros_(linear.bias)
    return Residual(linear) if kind == "residual" else linear


def linear_map(projection: nn.Module, width: int) -> nn.Linear | None:
    """What a projection of this width does as one linear map, if it does no more."""
    if isinstance(projection, nn.Linear):
        return projection
    if not isinstance(projection, nn.Identity):
        return None
    same = nn.Linear(width, width)
    nn.init.eye_(same.weight)
    nn.init.zeros_(same.bias)
    return same
