"""Exact search with torch, on any device, in blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import Index, option
from xmclab.indexes.checks import refuse_non_finite


@dataclass
class Exact(Index):
    """Every label is compared; memory is bounded by the blocks, and equal scores are ordered by label id."""

    query_block: int = option(1024, "queries compared at once", ge=1)
    label_block: int = option(32768, "labels compared at once", ge=1)

    def __post_init__(self) -> None:
        self._z_LD: Tensor | None = None

    def build(self, z_LD: Tensor) -> None:
        """Take the label vectors; they stay on their device."""
        refuse_non_finite(z_LD, "label")
        self._z_LD = z_LD.detach().float()

    @torch.no_grad()
    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(ids_QK, scores_QK) on the device of the label vectors; -1 and -inf beyond the last label."""
        if self._z_LD is None:
            raise RuntimeError("build the index before searching it")
        q_QD = q_QD.to(self._z_LD)
        refuse_non_finite(q_QD, "query")
        ids_QK = q_QD.new_full((len(q_QD), k), -1, dtype=torch.int64)
        scores_QK = q_QD.new_full((len(q_QD), k), -torch.inf)
        for start in range(0, len(q_QD), self.query_block):
            block = slice(start, start + self.query_block)
            ids, scores = self._search_block(q_QD[block], self._z_LD, k)
            ids_QK[block, : ids.shape[1]] = ids
            scores_QK[block, : ids.shape[1]] = scores
        return ids_QK, scores_QK

    def _search_block(self, q_QD: Tensor, z_LD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The best of each block of labels, merged; a stable sort keeps the smaller ids, found earlier, in front."""
        ids_QK = torch.empty(len(q_QD), 0, dtype=torch.int64, device=q_QD.device)
        scores_QK = torch.empty(len(q_QD), 0, device=q_QD.device)
        for start in range(0, len(z_LD), self.label_block):
            ids, scores = top(q_QD @ z_LD[start : start + self.label_block].T, k)
            ids_QK, scores_QK = torch.cat([ids_QK, ids + start], dim=1), torch.cat([scores_QK, scores], dim=1)
            scores_QK, order = scores_QK.sort(dim=1, descending=True, stable=True)
            ids_QK, scores_QK = ids_QK.gather(1, order[:, :k]), scores_QK[:, :k]
        return ids_QK, scores_QK


def top(s_QP: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(columns, scores) of the min(k, P) best of each row, smaller column first among equals."""
    best, columns = s_QP.topk(min(k + 1, s_QP.shape[1]), dim=1)
    columns = columns[:, :k]
    # topk takes any of the columns that share the last score: rows where it had a choice are sorted in full.
    tied = (best[:, k:] == best[:, k - 1 : k]).any(dim=1)
    columns[tied] = s_QP[tied].argsort(dim=1, descending=True, stable=True)[:, :k]
    columns = columns.sort(dim=1).values
    scores, order = s_QP.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return columns.gather(1, order), scores
