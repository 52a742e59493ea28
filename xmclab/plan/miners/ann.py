"""Nearest-neighbour negatives: the labels that the model itself confuses with a query's positives.

Where:    H_i nearest labels of query i in the latest view without its positives and filter pairs, |H_i| = depth
Paper:    Kharbanda et al., UniDEC (WWW 2025), with depth = eta · refresh_every; fixed depths: 200 in ANCE (Xiong et
          al., ICLR 2021), 100 in DEXML (Gupta et al., ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from xmclab.api import Keys, Miner, View, option
from xmclab.plan.csr import row_pairs
from xmclab.plan.draws import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESULTS_AT_ONCE = 1 << 22  # search results held at once
QUERIES_AT_ONCE = 65536


@dataclass
class AnnMiner(Miner):
    """Labels drawn from the nearest ones of the latest view; none before the first."""

    needs_view: ClassVar[bool] = True

    depth: int = option(0, "nearest labels to draw from; 0: as many as a query draws until the next refresh", ge=0)

    @property
    def mining_depth(self) -> int:
        """The option."""
        return self.depth

    def __post_init__(self) -> None:
        self._hard_NH: NDArray[np.int32] | None = None  # -1 only at the ends of rows
        self._mined_N = np.empty(0, dtype=np.int64)
        self._report: dict[str, Any] = {}

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        """Keep the `depth` nearest labels of every query that are not excluded."""
        index, q_ND = copy(self.index), view.q_ND  # a copy is freed after the search
        index.build(view.z_LD)
        index.tune(q_ND, keys.rng("recall", view.epoch))
        hard_NH = np.full((len(q_ND), depth), -1, dtype=np.int32)
        for rows, k in _chunks(np.diff(exclude_NL.indptr), depth, exclude_NL.shape[1]):
            ids_QK, _ = index.search(q_ND[torch.from_numpy(rows).to(q_ND.device)], k)
            allowed_QK = _without_excluded(ids_QK, rows, exclude_NL)[:, :depth]
            hard_NH[rows, : min(k, depth)] = allowed_QK.int().cpu().numpy()
        self._hard_NH, self._mined_N = hard_NH, np.count_nonzero(hard_NH >= 0, axis=1)
        self._report = {"recall": report["recall"], "index": report} if (report := index.report()) else {}

    def state(self) -> Mapping[str, NDArray[Any]]:
        """The labels mined for each query."""
        return {} if self._hard_NH is None else {"hard": self._hard_NH}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take them from an earlier refresh, whose report is not repeated."""
        self._hard_NH = arrays["hard"]
        self._mined_N = np.count_nonzero(self._hard_NH >= 0, axis=1)

    def report(self) -> dict[str, Any]:
        """The index of the latest search."""
        return self._report

    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, n] labels drawn uniformly, without replacement, from those mined with the same `exclude_NL`."""
        if self._hard_NH is None:
            return np.full((len(rows_Q), n), -1, dtype=np.int64)
        places_Qn = distinct(self._mined_N[rows_Q], n, rng)
        return np.where(places_Qn < 0, -1, self._hard_NH[rows_Q[:, None], places_Qn]).astype(np.int64)


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


def _without_excluded(ids_QK: Tensor, rows_Q: NDArray[np.int64], exclude_NL: sp.csr_array) -> Tensor:
    """The allowed results of each query moved to the front in their order, -1 behind them."""
    excluded, num_labels = row_pairs(exclude_NL, rows_Q), exclude_NL.shape[1]
    cells = np.sort(excluded.row_E * num_labels + excluded.column_E)
    cell_E = F.pad(torch.from_numpy(cells).to(ids_QK.device), (1, 0), value=-1)  # so there is one
    cell_QK = torch.arange(len(ids_QK), device=ids_QK.device)[:, None] * num_labels + ids_QK
    place_QK = torch.searchsorted(cell_E, cell_QK).clamp_(max=len(cell_E) - 1)
    gone_QK = (cell_E[place_QK] == cell_QK) | (ids_QK < 0)
    order_QK = gone_QK.to(torch.uint8).argsort(dim=1, stable=True)
    return ids_QK.masked_fill(gone_QK, -1).gather(1, order_QK)
