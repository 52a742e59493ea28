"""Exact search with torch, on any device, in blocks.

The scores of a block stay in the cache: one pass takes the maximum of each run of labels, and only runs that beat the
k-th best score found so far are looked at again. So the cost is that of the matrix product and little more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xmclab.api import Index, option
from xmclab.plan.indexes.checks import refuse_non_finite

RUN = 32  # neighbouring labels that share a maximum
LEAST, MOST = 4096, 65536  # labels compared at once, unless it is chosen: on a CPU with many queries, and elsewhere
FEW_SCORES = 64 * LEAST

Found = tuple[Tensor, Tensor, Tensor]  # (row_E, id_E, score_E) of cells that beat the k-th best of their row


@dataclass
class Exact(Index):
    """Every label is compared; memory is bounded by the blocks, and equal scores are ordered by label id."""

    query_block: int = option(1024, "queries compared at once", ge=1)
    label_block: int = option(
        0, "labels compared at once; 0: 4096 on a CPU (its cache), 65536 for few queries and elsewhere", ge=0
    )

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
            label_block = self._labels_at_once(len(q_QD[block]))
            search_into(ids_QK[block], scores_QK[block], q_QD[block], self._z_LD, label_block)
        return ids_QK, scores_QK

    def _labels_at_once(self, queries: int) -> int:
        """How many labels are compared in one product: more for few queries, whose scores are few."""
        if self.label_block or self._z_LD is None:
            return self.label_block
        if self._z_LD.device.type != "cpu":
            return MOST
        return min(max(FEW_SCORES // max(queries, 1), LEAST), MOST)


def search_into(ids_QK: Tensor, scores_QK: Tensor, q_QD: Tensor, z_LD: Tensor, label_block: int) -> None:
    """Write the best labels of some queries over `ids_QK` (-1) and `scores_QK` (-inf), block by block of labels."""
    columns = -(-min(label_block, len(z_LD)) // RUN) * RUN
    s_QP = q_QD.new_empty(len(q_QD), columns)  # written again for each block, as fresh memory costs more than a product
    pending: list[Found] = []
    for start in range(0, len(z_LD), label_block):
        z_PD = z_LD[start : start + label_block]
        torch.mm(q_QD, z_PD.T, out=s_QP[:, : len(z_PD)])
        if start == 0:
            ids, scores = top(s_QP[:, : len(z_PD)], ids_QK.shape[1])
            ids_QK[:, : ids.shape[1]], scores_QK[:, : ids.shape[1]] = ids, scores
            continue
        s_QP[:, len(z_PD) :] = -torch.inf
        row_E, column_E, score_E = above(s_QP, scores_QK[:, -1])
        pending.append((row_E, column_E + start, score_E))
        if sum(len(rows) for rows, _, _ in pending) >= ids_QK.numel():  # so the threshold rises when it is worth it
            merge_into(ids_QK, scores_QK, pending)
            pending = []
    if pending:
        merge_into(ids_QK, scores_QK, pending)


def above(s_QP: Tensor, threshold_Q: Tensor) -> Found:
    """The cells above the threshold of their row, by row and column; P is a multiple of `RUN`.

    A later column that equals the k-th best of earlier ones ranks behind it, so only larger scores count.
    """
    s_QCR = s_QP.view(len(s_QP), -1, RUN)
    row_C, run_C = torch.nonzero(s_QCR.amax(dim=2) > threshold_Q[:, None], as_tuple=True)
    s_CR = s_QCR[row_C, run_C]
    cell_E, place_E = torch.nonzero(s_CR > threshold_Q[row_C, None], as_tuple=True)
    return row_C[cell_E], run_C[cell_E] * RUN + place_E, s_CR[cell_E, place_E]


def merge_into(ids_QK: Tensor, scores_QK: Tensor, found: list[Found]) -> None:
    """Put found cells, whose ids are larger than those in `ids_QK`, in their places; smaller ids first among equals."""
    row_E, id_E, score_E = (torch.cat(parts) for parts in zip(*found, strict=True))
    row_E, order_E = row_E.sort(stable=True)
    counts_Q = torch.bincount(row_E, minlength=len(ids_QK))
    place_E = torch.arange(len(row_E), device=row_E.device) - (counts_Q.cumsum(0) - counts_Q)[row_E]
    widest = int(counts_Q.max())
    more_ids = ids_QK.new_full((len(ids_QK), widest), -1)
    more_scores = scores_QK.new_full((len(ids_QK), widest), -torch.inf)
    more_ids[row_E, place_E] = id_E[order_E]
    more_scores[row_E, place_E] = score_E[order_E]
    k = ids_QK.shape[1]
    scores, order = torch.cat([scores_QK, more_scores], dim=1).sort(dim=1, descending=True, stable=True)
    scores_QK.copy_(scores[:, :k])
    ids_QK.copy_(torch.cat([ids_QK, more_ids], dim=1).gather(1, order[:, :k]))


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
