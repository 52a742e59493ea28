"""Batches of similar queries without clustering: cut the queries into slices along a random direction.

Formula:  order queries by <q_i, g>, g ~ N(0, I) drawn for each epoch; cut; join random slices into batches
Use when: clustering takes too long; this takes one product and one sort per epoch
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab.api import Keys, Sampler, View, option


@dataclass
class Slices(Sampler):
    """Neighbours along a random direction of the latest view; random before the first view."""

    needs_view: ClassVar[bool] = True

    slices: int = option(4, "slices per batch", ge=1)

    def plan(
        self, rows_N: NDArray[np.int64], targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys
    ) -> list[NDArray[np.int64]]:
        """The batches of an epoch, whose sizes differ by at most one."""
        rng = keys.rng("plan", epoch)
        batches = math.ceil(len(rows_N) / self.batch_size)
        if view is None:
            return np.array_split(rng.permutation(rows_N), batches)
        along_N = view.queries_ND[rows_N] @ rng.standard_normal(view.queries_ND.shape[1], dtype=np.float32)
        slices = np.array_split(rows_N[np.argsort(along_N, kind="stable")], batches * self.slices)
        return np.array_split(np.concatenate([slices[i] for i in rng.permutation(len(slices))]), batches)
