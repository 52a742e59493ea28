"""Nearest-neighbour negatives: the labels that the model itself confuses with a query's positives.

Where:    H_i nearest labels of query i in the latest view without its positives and filter pairs, |H_i| = depth
Paper:    Kharbanda et al., UniDEC (WWW 2025), with depth = eta · refresh_every.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch

from xmclab.api import Index, Keys, Miner, View, option
from xmclab.kernels.dispatch import numba_works
from xmclab.plan.csr import contains
from xmclab.plan.draws import distinct
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss, load_faiss
from xmclab.plan.indexes.lists import Lists

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT_UP_TO = 5e9  # query-label pairs that a CPU compares in about the time it takes to build an index of lists
RECALL_GOAL = 0.99
FIRST_PROBES = 4  # lists searched before the recall is measured
RECALL_QUERIES, RECALL_AT = 512, 30  # recall is measured on a sample of queries, among their nearest labels
RESULTS_AT_ONCE = 1 << 22  # search results held at once
QUERIES_AT_ONCE = 65536


@dataclass
class AnnMiner(Miner):
    """Labels drawn from the nearest ones of the latest view; none before the first.

    `auto` compares every pair on an accelerator and up to 5e9 pairs; beyond, it takes `Lists` where numba is installed,
    or else faiss's inverted lists. An approximate search is measured against an exact one at every refresh, on a sample
    of the queries, and searches wider until its recall is 0.99; if that does not pay, `auto` uses exact search.
    """

    needs_view: ClassVar[bool] = True

    index: Literal["auto", "exact", "faiss"] = option("auto", "how the nearest labels are found; auto: by size")
    faiss_type: Literal["flat", "hnsw", "ivf"] = option("ivf", "structure of the faiss index")

    def __post_init__(self) -> None:
        self._hard_NH: NDArray[np.int32] | None = None  # -1 only at the ends of rows
        self._mined_N = np.empty(0, dtype=np.int64)
        self._recall: float | None = None
        if self.index == "faiss":
            load_faiss()  # reports its absence now, not after the first epochs

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        """Keep the `depth` nearest labels of every query that are not excluded."""
        z_LD = torch.from_numpy(view.labels_LD).to(view.device)
        index, self._recall = self._make_index(view), 1.0
        index.build(z_LD)
        if not index.exact:
            self._recall = reach_recall(index, view, keys)
            if self.index == "auto" and index.share > index.pays_up_to:
                index, self._recall = Exact(), 1.0
                index.build(z_LD)
        hard_NH = np.full((len(view.queries_ND), depth), -1, dtype=np.int32)
        for rows, k in _chunks(np.diff(exclude_NL.indptr), depth, exclude_NL.shape[1]):
            ids_QK, _ = index.search(torch.from_numpy(view.queries_ND[rows]).to(view.device), k)
            hard_NH[rows, : min(k, depth)] = _without_excluded(ids_QK.cpu().numpy(), rows, exclude_NL)[:, :depth]
        self._hard_NH, self._mined_N = hard_NH, np.count_nonzero(hard_NH >= 0, axis=1)

    def report(self) -> dict[str, float]:
        """The recall of the latest search."""
        return {} if self._recall is None else {"recall": self._recall}

    def _make_index(self, view: View) -> Index:
        if self.index == "faiss":
            return Faiss(type=self.faiss_type)
        pairs = len(view.queries_ND) * len(view.labels_LD)
        if self.index == "exact" or view.device != "cpu" or pairs <= EXACT_UP_TO:
            return Exact()
        if numba_works():
            return Lists(probes=FIRST_PROBES)
        return Faiss(type="ivf", probes=FIRST_PROBES) if find_spec("faiss") else Exact()

    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, n] labels drawn uniformly, without replacement, from those mined with the same `exclude_NL`."""
        if self._hard_NH is None:
            return np.full((len(rows_Q), n), -1, dtype=np.int64)
        places_Qn = distinct(self._mined_N[rows_Q], n, rng)
        return np.where(places_Qn < 0, -1, self._hard_NH[rows_Q[:, None], places_Qn]).astype(np.int64)


def reach_recall(index: Index, view: View, keys: Keys) -> float:
    """Let the index search wider until it finds what exact search finds; returns the recall."""
    sample = keys.rng("recall", view.epoch).permutation(len(view.queries_ND))[:RECALL_QUERIES]
    q_QD = torch.from_numpy(view.queries_ND[sample]).to(view.device)
    exact = Exact()
    exact.build(torch.from_numpy(view.labels_LD).to(view.device))
    k = min(RECALL_AT, len(view.labels_LD))
    nearest_QK, _ = exact.search(q_QD, k)
    while True:
        found_QK, _ = index.search(q_QD, k)
        recall = float((nearest_QK[:, :, None] == found_QK[:, None, :]).any(dim=2).float().mean())
        if recall >= RECALL_GOAL or not index.look_further():
            return recall


def _chunks(excluded_N: NDArray[np.int64], depth: int, num_labels: int) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Query ids to search together and how many results they need: rows with many exclusions deepen few searches."""
    order = np.argsort(excluded_N, kind="stable")
    start = 0
    while start < len(order):
        block = order[start : start + QUERIES_AT_ONCE]
        needed = min(num_labels, depth + int(excluded_N[block[-1]]))
        rows = block[: max(1, RESULTS_AT_ONCE // needed)]
        yield rows, min(num_labels, depth + int(excluded_N[rows[-1]]))
        start += len(rows)


def _without_excluded(
    ids_QK: NDArray[np.int64], rows_Q: NDArray[np.int64], exclude_NL: sp.csr_array
) -> NDArray[np.int64]:
    """The allowed results of each query moved to the front in their order, -1 behind them."""
    ids_QK = np.where(contains(exclude_NL, rows_Q, ids_QK), -1, ids_QK)
    return np.take_along_axis(ids_QK, np.argsort(ids_QK < 0, axis=1, kind="stable"), axis=1)
