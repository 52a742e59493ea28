"""Cluster batches: a batch is a cluster of similar queries, so that their positives are each other's hard negatives.

Paper:    Kharbanda et al., UniDEC (WWW 2025); Dahiya et al., NGAME (WSDM 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from xmclab.api import Keys, Sampler, View, option
from xmclab.plan.samplers.k_means import balanced_k_means
from xmclab.plan.samplers.random import random_batches
from xmclab.plan.samplers.two_means import balanced_clusters

if TYPE_CHECKING:
    from numpy.typing import NDArray

Method = Literal["auto", "two_means", "k_means"]
METHOD_HELP = "two_means: the paper's tree; k_means: faster and tighter; auto: two_means below 50000 queries"
TREE_UP_TO = 50_000  # queries that auto leaves to the paper's method, which takes about a second for them


class ClusterCache:
    """The clusters of the latest view: recomputed when the view or the request changes."""

    def __init__(self, method: Method = "auto") -> None:
        self._method = method
        self._view: View | None = None
        self._asked: tuple[int, int, bytes] | None = None
        self._clusters: Sequence[NDArray[np.int64]] = ()

    def get(self, view: View, rows_N: NDArray[np.int64], leaves: int, keys: Keys) -> Sequence[NDArray[np.int64]]:
        """`leaves` balanced clusters of these rows; pure in the arguments."""
        asked = (leaves, keys.seed, rows_N.tobytes())
        if view is not self._view or asked != self._asked:
            rng = keys.rng("cluster", view.epoch)
            tree = self._method == "two_means" or (self._method == "auto" and len(rows_N) < TREE_UP_TO)
            make = balanced_clusters if tree else balanced_k_means
            self._clusters = make(view.q_ND, rows_N, leaves, rng)
            self._view, self._asked = view, asked
        return self._clusters


@dataclass
class Cluster(Sampler):
    """Each batch is a balanced cluster of the query vectors; random before the first view.

    By default balanced recursive 2-means (the paper's) makes the clusters of up to 50,000 queries, and balanced k-means
    those of more: it is faster there, and its clusters are tighter.
    """

    needs_view: ClassVar[bool] = True

    depth: Literal["fit", "release"] = option(
        "fit",
        "fit: the fewest leaves of at most batch_size queries; release: 2^floor(log2(N / batch_size)) larger leaves",
    )

    method: Method = option("auto", METHOD_HELP)

    def __post_init__(self) -> None:
        self._cache = ClusterCache(self.method)

    def plan(
        self, rows_N: NDArray[np.int64], targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys
    ) -> list[NDArray[np.int64]]:
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
