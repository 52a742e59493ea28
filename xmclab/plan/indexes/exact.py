"""Exact search with torch, on any device, in blocks.

On a CPU, the scores of a block stay in the cache: one pass takes the maximum of each run of labels, and only runs that
beat the k-th best score found so far are looked at again. So the cost is that of the matrix product and little more.
On a GPU, products of float16 choose a shortlist (`shortlist.py`), and the few queries for which it may lack a label are
compared as on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from xmclab.api import Index, option
from xmclab.plan.indexes.checks import refuse_non_finite
from xmclab.plan.indexes.shortlist import Found as Listed
from xmclab.plan.indexes.shortlist import Shortlist

RUN = 32  # neighbouring labels that share a maximum
LEAST, MOST = 4096, 65536  # labels compared at once on a CPU, unless it is chosen: with many queries, and with few
FEW_SCORES = 64 * LEAST
ELSEWHERE = 8192, 32768  # queries and labels compared at once on another device

Found = tuple[Tensor, Tensor, Tensor]  # (row_E, id_E, score_E) of cells that beat the k-th best of their row


@dataclass
class Exact(Index):
    """Every label is compared; memory is bounded by the blocks, and equal scores are ordered by label id."""

    query_block: int = option(0, "queries compared at once; 0: 1024 on a CPU, 8192 elsewhere", ge=0)
    label_block: int = option(
        0, "labels compared at once; 0: 4096 on a CPU (its cache), 65536 there for few queries, 32768 elsewhere", ge=0
    )
    shortlist: Literal["auto", "float16", "none"] = option(
        "auto", "float16: float16 chooses the labels that float32 ranks, with the same result; auto: on a GPU"
    )

    def __post_init__(self) -> None:
        self._z_LD: Tensor | None = None
        self._shortlists: dict[tuple[int, ...], Shortlist] = {}

    def build(self, z_LD: Tensor) -> None:
        """Take the label vectors; they stay on their device."""
        refuse_non_finite(z_LD, "label")
        self._z_LD, self._shortlists = z_LD.detach().float(), {}

    @torch.no_grad()
    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(ids_QK, scores_QK) on the device of the label vectors; -1 and -inf beyond the last label."""
        q_QD = q_QD.to(self._labels)
        if self.shares_products and len(self._labels):
            return self._shortlisted(q_QD, q_QD.shape[1:], k)[0]
        refuse_non_finite(q_QD, "query")
        return self._compared(q_QD, self._labels, k)

    @property
    def shares_products(self) -> bool:
        """Whether shortlists are used."""
        return self.shortlist == "float16" or (self.shortlist == "auto" and self._labels.device.type != "cpu")

    @torch.no_grad()
    def search_parts(self, q_QD: Tensor, widths: Sequence[int], k: int) -> list[tuple[Tensor, Tensor]]:
        """Results by each run of columns, and by all of them; with shortlists these are the same bits as alone."""
        return self._shortlisted(q_QD.to(self._labels), widths, k)

    @property
    def _labels(self) -> Tensor:
        if self._z_LD is None:
            raise RuntimeError("build the index before searching it")
        return self._z_LD

    @property
    def _queries_at_once(self) -> int:
        return self.query_block or (1024 if self._labels.device.type == "cpu" else ELSEWHERE[0])

    def _labels_at_once(self, queries: int) -> int:
        """How many labels are compared in one product: more for few queries, whose scores are few."""
        if self.label_block:
            return self.label_block
        if self._labels.device.type != "cpu":
            return ELSEWHERE[1]
        return min(max(FEW_SCORES // max(queries, 1), LEAST), MOST)

    def _compared(self, q_QD: Tensor, z_LD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Every score in float32."""
        ids_QK = q_QD.new_full((len(q_QD), k), -1, dtype=torch.int64)
        scores_QK = q_QD.new_full((len(q_QD), k), -torch.inf)
        for start in range(0, len(q_QD), self._queries_at_once):
            block = slice(start, start + self._queries_at_once)
            label_block = self._labels_at_once(len(q_QD[block]))
            search_into(ids_QK[block], scores_QK[block], q_QD[block], z_LD, label_block)
        return ids_QK, scores_QK

    def _shortlisted(self, q_QD: Tensor, widths: Sequence[int], k: int) -> list[tuple[Tensor, Tensor]]:
        """Results by shortlists, of each width and of all if there are several; the device is waited for once."""
        if (key := tuple(widths)) not in self._shortlists:
            self._shortlists[key] = Shortlist(self._labels, widths, self._labels_at_once(self._queries_at_once))
        blocks = [self._shortlists[key].search(q_BD, k) for q_BD in q_QD.split(self._queries_at_once)]
        found = [_joined(parts, k) for parts in zip(*blocks, strict=True)]
        unsure = torch.nonzero(~torch.stack([each.sure_Q for each in found]))  # the one wait
        if len(unsure):
            refuse_non_finite(q_QD, "query")
            columns = [*(slice(*ends) for ends in pairwise(accumulate(widths, initial=0))), slice(None)]
            for each, of in zip(found, columns, strict=False):
                rows = torch.nonzero(~each.sure_Q)[:, 0]
                each.ids_QK[rows], each.scores_QK[rows] = self._compared(q_QD[rows, of], self._labels[:, of], k)
        return [(each.ids_QK, each.scores_QK) for each in found]


def _joined(blocks: Sequence[Listed], k: int) -> Listed:
    """The results of all queries, padded to k columns."""
    ids_QK, scores_QK = torch.cat([each.ids_QK for each in blocks]), torch.cat([each.scores_QK for each in blocks])
    if missing := k - ids_QK.shape[1]:
        ids_QK = F.pad(ids_QK, (0, missing), value=-1)
        scores_QK = F.pad(scores_QK, (0, missing), value=-torch.inf)
    return Listed(ids_QK, scores_QK, torch.cat([each.sure_Q for each in blocks]))


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
