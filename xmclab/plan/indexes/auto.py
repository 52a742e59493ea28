"""Exact search, or faiss's inverted lists where these are faster.

A sample of the queries is searched exactly. Its nearest labels tell how many lists a query must probe to find them,
before a single label is put into a list; if these are too many, exact search is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xmclab.api import Index, option
from xmclab.errors import PluginError
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss

# Measured in benchmarks/index/results.md: clustering the labels and searching the sample take as long as comparing
# 1,200 to 1,700 queries with all labels, so with this many of each a failed attempt costs less than 10 %.
LISTS_FROM = 30_000  # queries, and labels
PAYS_UP_TO = 1 / 16  # share of the lists; faiss compares a pair in a list in 3 to 6 times the time of a large product
SAMPLE, AT = 512, 30  # recall is measured on a sample of the queries, among their nearest labels


@dataclass
class Auto(Index):
    """Exact search, but inverted lists of faiss for many queries on a CPU, if they find the same labels faster.

    Sizes and vectors decide, never a clock. Without faiss, and before `tune`, the search is exact.
    """

    recall: float = option(0.99, "recall@30 that inverted lists must reach on a sample of the queries", ge=0, le=1)

    def __post_init__(self) -> None:
        self._index: Index = Exact()
        self._report: dict[str, Any] = {}

    def build(self, z_LD: Tensor) -> None:
        """Take the label vectors for exact search."""
        self._index, self._report = Exact(), {"name": "exact", "options": {}, "recall": 1.0}
        self._index.build(z_LD)
        self._z_LD = z_LD

    def tune(self, q_ND: Tensor, rng: np.random.Generator) -> None:
        """Use inverted lists if these queries are worth it."""
        z_LD = self._z_LD
        if min(len(q_ND), len(z_LD)) < LISTS_FROM or z_LD.device.type != "cpu":
            return
        try:
            lists = Faiss(type="ivf")
        except PluginError:  # faiss is not installed
            return
        q_SD = q_ND[torch.from_numpy(rng.permutation(len(q_ND))[:SAMPLE])].to(z_LD)
        nearest_SK, _ = self._index.search(q_SD, min(AT, len(z_LD)))
        lists.train(z_LD)
        recall = lists.probe_for(q_SD, nearest_SK, z_LD, self.recall, PAYS_UP_TO)
        if recall >= self.recall:
            lists.fill(z_LD)
            options = {"type": "ivf", "lists": lists.count, "probes": lists.probes}
            self._index, self._report = lists, {"name": "faiss", "options": options, "recall": recall}

    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """What the chosen index finds."""
        return self._index.search(q_QD, k)

    @property
    def shares_products(self) -> bool:
        """Whether the chosen index does."""
        return self._index.shares_products

    def search_parts(self, q_QD: Tensor, widths: Sequence[int], k: int) -> list[tuple[Tensor, Tensor]]:
        """What the chosen index finds."""
        return self._index.search_parts(q_QD, widths, k)

    def report(self) -> dict[str, Any]:
        """The chosen index."""
        return self._report
