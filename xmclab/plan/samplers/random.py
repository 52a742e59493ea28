"""Random batches: the queries are reshuffled every epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Keys, Sampler, View

if TYPE_CHECKING:
    from numpy.typing import NDArray


def random_batches(rows_N: NDArray[np.int64], batches: int, epoch: int, keys: Keys) -> list[NDArray[np.int64]]:
    """The rows in random order, cut into this many batches whose sizes differ by at most one."""
    return np.array_split(keys.rng("plan", epoch).permutation(rows_N), batches)


@dataclass
class Random(Sampler):
    """Queries in random order, cut into batches whose sizes differ by at most one."""

    def plan(
        self, rows_N: NDArray[np.int64], targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys
    ) -> list[NDArray[np.int64]]:
        """The batches of an epoch; the view is not used."""
        return random_batches(rows_N, math.ceil(len(rows_N) / self.batch_size), epoch, keys)
