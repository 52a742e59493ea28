"""The linear map at the start of a head."""

from __future__ import annotations

from typing import Literal

from torch import nn

ProjectionInit = Literal["default", "identity"]


def projection(width: int, dim: int, init: ProjectionInit) -> nn.Linear:
    """A linear map; `identity` starts as the (rectangular) identity, so that the head begins where the encoder ends."""
    linear = nn.Linear(width, dim)
    if init == "identity":
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
    return linear
