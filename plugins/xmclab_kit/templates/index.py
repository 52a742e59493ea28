"""Exact search over label vectors that are kept in half the memory.

Formula:  s_l = <q, z'_l>,  z' = z rounded to bfloat16
Use when: the label vectors hardly fit into memory
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xmclab
from torch import Tensor
from xmclab.api import Index


@dataclass
class PartName(Index):
    """Every label is compared; its vector is kept in bfloat16."""

    block: int = xmclab.option(256, "queries compared at once", ge=1)

    def __post_init__(self) -> None:
        self._z_LD = torch.empty(0, 0, dtype=torch.bfloat16)

    @property
    def shape(self) -> tuple[int, int]:
        """(L, D) of the label vectors."""
        labels, width = self._z_LD.shape
        return labels, width

    def build(self, z_LD: Tensor) -> None:
        """Keep the label vectors, rounded."""
        self._z_LD = z_LD.detach().to(torch.bfloat16)

    @torch.no_grad()
    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(ids_QK, scores_QK), best first; -1 and -inf beyond the last label."""
        q_QD = q_QD.to(self._z_LD.device, torch.float32)
        ids_QK = torch.full((len(q_QD), k), -1, device=q_QD.device)
        scores_QK = torch.full((len(q_QD), k), -torch.inf, device=q_QD.device)
        z_LD = self._z_LD.float()
        for start in range(0, len(q_QD), self.block):
            rows = slice(start, start + self.block)
            s_BL = q_QD[rows] @ z_LD.T
            # A stable order: equal scores by ascending id.
            sorted_BL, order_BL = s_BL.sort(dim=1, descending=True, stable=True)
            found = min(k, len(z_LD))
            ids_QK[rows, :found] = order_BL[:, :found]
            scores_QK[rows, :found] = sorted_BL[:, :found]
        return ids_QK, scores_QK
