"""Losses that are wrong on a GPU: the harness must say where."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab import hookimpl, part
from xmclab.api import MultiClassLoss


@dataclass
class Mixed(MultiClassLoss):
    """Adds numbers of the host."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP + torch.ones(s_QP.shape)


@dataclass
class Waiting(MultiClassLoss):
    """Asks for a number, and copies one from the host."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        largest = float(s_QP.max())
        return s_QP - torch.full((1,), largest).to(s_QP.device)


@hookimpl
def xmclab_parts() -> list[object]:
    return [part("loss", "mixed", Mixed), part("loss", "waiting", Waiting)]
