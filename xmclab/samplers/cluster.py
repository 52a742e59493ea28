"""Cluster batches: a batch is a cluster of similar queries, so that their positives are each other's hard negatives.

Paper:    Kharbanda et al., UniDEC (WWW 2025); Dahiya et al., NGAME (WSDM 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from xmclab.api import Keys, Sampler, View, option
from xmclab.samplers.random import random_batches
from xmclab.samplers.two_means import balanced_clusters

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ClusterCache:
    """The clusters of the latest view: computed when the view, or what is asked of it, changes."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._asked: tuple[int, int, bytes] | None = None
        self._clusters: Sequence[NDArray[np.int64]] = ()

    def get(self, view: View, rows_N: NDArray[np.int64], leaves: int, keys: Keys) -> Sequence[NDArray[np.int64]]:
        """`leaves` balanced clusters of these rows; pure in the arguments."""
        asked = (leaves, keys.seed, rows_N.tobytes())
        if view is not self._view or asked != self._asked:
            rng = keys.rng("cluster", view.epoch)
            self._clusters = balanced_clusters(view.queries_ND, rows_N, leaves, rng)
            self._view, self._asked = view, asked
        return self._clusters


@dataclass
class Cluster(Sampler):
    """Each batch is a leaf of balanced recursive 2-means over the query vectors; random before the first view."""

    needs_view: ClassVar[bool] = True

    depth: Literal["fit", "release"] = option(
        "fit",
        "fit: the fewest leaves of at most batch_size queries; release: 2^floor(log2(N / batch_size)) larger leaves",
    )

    def __post_init__(self) -> None:
        self._cache = ClusterCache()

    def plan(self, rows_N: NDArray[np.int64], epoch: int, view: View | None, keys: Keys) -> list[NDArray[np.int64]]:
        """The leaves in the random order of this epoch."""
        leaves = self._leaves(len(rows_N))
        if view is None:
            return random_batches(rows_N, leaves, epoch, keys)
        clusters = self._cache.get(view, rows_N, leaves, keys)
        return [clusters[i] for i in keys.rng("plan", epoch).permutation(len(clusters))]

    def _leaves(self, queries: int) -> int:
        if self.depth == "fit":
            return math.ceil(queries / self.batch_size)
        whole_batches = max(1, queries // self.batch_size)
        return 1 << (whole_batches.bit_length() - 1)
