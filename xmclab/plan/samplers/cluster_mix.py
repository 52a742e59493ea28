"""Mixed cluster batches: many small clusters in each batch, larger ones as training goes on.

NGAME:    cluster_size=1 double_at=10,20,25,50,75,100,125,150,200 with refresh_every=5; the authors' program also rounds
          the number of clusters up to a power of two
Paper:    Dahiya et al., NGAME (WSDM 2023): negatives get harder as the clusters grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy.sparse as sp

from xmclab.api import Keys, Sampler, View, option
from xmclab.plan.samplers.cluster import METHOD_HELP, ClusterCache, Method
from xmclab.plan.samplers.random import random_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class ClusterMix(Sampler):
    """Small clusters of similar queries, shuffled, joined and cut into batches.

    Batches are random before the first view, and while a cluster is a single query.
    """

    needs_view: ClassVar[bool] = True

    cluster_size: int = option(
        32, "queries of a cluster in the first epochs; 1: random batches until they double", ge=1
    )
    double_at: tuple[int, ...] = option((), "epochs (from 0) at which the clusters double in size: 10,20")

    method: Method = option("auto", METHOD_HELP)

    def __post_init__(self) -> None:
        self._cache = ClusterCache(self.method)

    def size_at(self, epoch: int) -> int:
        """Queries of a cluster in this epoch."""
        return self.cluster_size << sum(epoch >= doubling for doubling in self.double_at)

    def plan(
        self, rows_N: NDArray[np.int64], targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys
    ) -> list[NDArray[np.int64]]:
        """The clusters in the random order of this epoch, cut into batches whose sizes differ by at most one."""
        batches = math.ceil(len(rows_N) / self.batch_size)
        if view is None or self.size_at(epoch) == 1:
            return random_batches(rows_N, batches, epoch, keys)
        clusters = self._cache.get(view, rows_N, math.ceil(len(rows_N) / self.size_at(epoch)), keys)
        order = keys.rng("plan", epoch).permutation(len(clusters))
        return np.array_split(np.concatenate([clusters[i] for i in order]), batches)
