"""Nearest-neighbour negatives: the labels that the model itself confuses with a query's positives.

Where:    H_i nearest labels of query i in the latest view without its positives and filter pairs, |H_i| = depth
Paper:    Kharbanda et al., UniDEC (WWW 2025), with depth = eta · refresh_every.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch

from xmclab.accelerator import accelerated
from xmclab.api import Index, Keys, Miner, View, option
from xmclab.batch.csr import contains
from xmclab.batch.draws import distinct
from xmclab.indexes.exact import Exact
from xmclab.indexes.faiss import Faiss

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESULTS_AT_ONCE = 1 << 22  # search results held at once
QUERIES_AT_ONCE = 8192


@dataclass
class AnnMiner(Miner):
    """Labels drawn from the nearest ones of the latest view; none before the first."""

    needs_view: ClassVar[bool] = True

    index: Literal["exact", "faiss"] = option("exact", "how the nearest labels are found")
    faiss_type: Literal["flat", "hnsw", "ivf"] = option("hnsw", "structure of the faiss index")

    def __post_init__(self) -> None:
        self._hard_NH: NDArray[np.int32] | None = None  # -1 only at the ends of rows
        self._mined_N = np.empty(0, dtype=np.int64)
        self._index: Index = Exact() if self.index == "exact" else Faiss(type=self.faiss_type)

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        """Keep the `depth` nearest labels of every query that are not excluded."""
        self._index.build(torch.from_numpy(view.labels_LD).to(view.device))
        hard_NH = np.full((len(view.queries_ND), depth), -1, dtype=np.int32)
        for rows, k in _chunks(np.diff(exclude_NL.indptr), depth, exclude_NL.shape[1]):
            ids_QK, _ = self._index.search(torch.from_numpy(view.queries_ND[rows]).to(view.device), k)
            hard_NH[rows, : min(k, depth)] = _without_excluded(ids_QK.cpu().numpy(), rows, exclude_NL)[:, :depth]
        self._hard_NH, self._mined_N = hard_NH, np.count_nonzero(hard_NH >= 0, axis=1)

    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, n] labels drawn uniformly, without replacement, from those mined with the same `exclude_NL`."""
        if self._hard_NH is None:
            return np.full((len(rows_Q), n), -1, dtype=np.int64)
        places_Qn = distinct(self._mined_N[rows_Q], n, rng, accelerated(self._hard_NH.size))
        return np.where(places_Qn < 0, -1, self._hard_NH[rows_Q[:, None], places_Qn]).astype(np.int64)


def _chunks(excluded_N: NDArray[np.int64], depth: int, num_labels: int) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Query ids to search together and how many results they need: a row with many exclusions deepens few searches."""
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
