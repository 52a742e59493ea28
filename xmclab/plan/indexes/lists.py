"""Approximate search of many queries at once: lists of similar labels, each compared with its queries in one product.

A search that goes query by query reads the labels of a list again for each of them. Here the queries that search a
list are gathered first, so that the comparison is a matrix product, several times as fast per pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from xmclab.api import Index, option
from xmclab.kernels.dispatch import accelerated
from xmclab.plan.indexes.best import Best
from xmclab.plan.indexes.checks import refuse_non_finite

ROUNDS = 6  # of the k-means that makes the lists
ROWS_AT_ONCE = 2048  # rows whose similarities to all centres are held at once
LOOKS_AT_ONCE = 1 << 22  # of queries at lists, sorted together
ROWS_PER_LIST = 39  # rows to fit the lists on; more cost time and help little


@dataclass
class Lists(Index):
    """Labels in lists by spherical k-means; a query searches the lists whose centres are nearest to it."""

    pays_up_to: ClassVar[float] = 1 / 4

    lists: int = option(0, "number of lists; 0: about 4 · sqrt(L)", ge=0)
    probes: int = option(8, "lists searched per query", ge=1)
    query_block: int = option(65536, "queries compared at once, fewer if they search many lists", ge=1)

    def __post_init__(self) -> None:
        self._centres_CD: Tensor | None = None

    @torch.no_grad()
    def build(self, z_LD: Tensor) -> None:
        """Put the label vectors into lists; a copy of them stays on their device."""
        refuse_non_finite(z_LD, "label")
        z_LD = z_LD.detach().float()
        self._centres_CD = k_means(z_LD, min(len(z_LD), self.lists or round(4 * math.sqrt(len(z_LD)))))
        lists_L, labels_L = _nearest(z_LD, self._centres_CD).sort(stable=True)
        sizes = torch.bincount(lists_L, minlength=len(self._centres_CD)).tolist()
        self._labels, self._z = labels_L.split(sizes), z_LD[labels_L].split(sizes)  # of each list

    @torch.no_grad()
    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(ids_QK, scores_QK) on the device of the label vectors; -1 and -inf where the lists hold fewer."""
        if self._centres_CD is None:
            raise RuntimeError("build the index before searching it")
        q_QD = q_QD.to(self._centres_CD)
        refuse_non_finite(q_QD, "query")
        # The more queries at once, the larger the products.
        rows = min(self.query_block, max(1, LOOKS_AT_ONCE // self.probes))
        found = [self._search_block(block, self._centres_CD, k) for block in q_QD.split(rows)]
        ids, scores = zip(*found, strict=True)
        return torch.cat(ids), torch.cat(scores)

    @property
    def share(self) -> float:
        """The share of the lists that a search covers."""
        return min(1.0, self.probes / len(self._z))

    def look_further(self) -> bool:
        """Search half as many lists again; returns whether there were more to search."""
        if self.share == 1:
            return False
        self.probes += max(1, self.probes // 2)
        return True

    def _search_block(self, q_QD: Tensor, centres_CD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        probes = min(self.probes, len(self._z))
        near = [s_BC.topk(probes, dim=1, sorted=False).indices for s_BC in _similarities(q_QD, centres_CD)]
        lists, order = torch.cat(near).flatten().sort(stable=True)
        queries = (order // probes).split(torch.bincount(lists, minlength=len(self._z)).tolist())
        best = Best(q_QD, len(q_QD), k, accelerated(sum(map(len, self._z))))
        for rows, z_PD, labels_P in zip(queries, self._z, self._labels, strict=True):
            if len(rows):
                best.keep(rows, q_QD.index_select(0, rows) @ z_PD.T, labels_P)
        return best.ranked()


def k_means(x_ND: Tensor, clusters: int) -> Tensor:
    """centres_CD of unit length, fitted on a sample; the same for the same vectors."""
    generator = torch.Generator().manual_seed(0)
    sample = torch.randperm(len(x_ND), generator=generator)[: ROWS_PER_LIST * clusters].to(x_ND.device)
    x_SD = F.normalize(x_ND[sample], dim=1)
    centres_CD = x_SD[:clusters]
    for _ in range(ROUNDS):
        sums_CD = torch.zeros_like(centres_CD).index_add_(0, _nearest(x_SD, centres_CD), x_SD)
        centres_CD = torch.where(sums_CD.any(dim=1, keepdim=True), F.normalize(sums_CD, dim=1), centres_CD)
    return centres_CD


def _nearest(x_ND: Tensor, centres_CD: Tensor) -> Tensor:
    """The centre of each vector."""
    return torch.cat([s_BC.argmax(dim=1) for s_BC in _similarities(x_ND, centres_CD)])


def _similarities(x_ND: Tensor, centres_CD: Tensor) -> Iterator[Tensor]:
    """s_BC of the vectors, block by block, in memory that the next block overwrites: fresh memory costs time."""
    memory_BC = x_ND.new_empty(min(ROWS_AT_ONCE, len(x_ND)), len(centres_CD))
    for x_BD in x_ND.split(ROWS_AT_ONCE):
        yield torch.mm(x_BD, centres_CD.T, out=memory_BC[: len(x_BD)])
