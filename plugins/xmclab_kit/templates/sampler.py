"""Neighbouring queries of the data stay together.

Formula:  batch = random runs of neighbours, until it is full
Use when: the data is in a meaningful order, so that neighbours are hard for each other
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import xmclab
from numpy.typing import NDArray
from xmclab.api import Keys, Sampler, View


@dataclass
class PartName(Sampler):
    """Runs of neighbouring queries in random order, cut into batches of equal size."""

    run: int = xmclab.option(8, "neighbours that stay together", ge=1)

    def plan(
        self,
        rows_N: NDArray[np.int64],
        targets_NL: sp.csr_array,
        epoch: int,
        view: View | None,
        keys: Keys,
    ) -> list[NDArray[np.int64]]:
        """The batches of an epoch: every row once, the same for the same arguments."""
        runs = np.array_split(rows_N, math.ceil(len(rows_N) / self.run))
        order = keys.rng("plan", epoch).permutation(len(runs))
        shuffled_N = np.concatenate([runs[i] for i in order])
        return np.array_split(shuffled_N, math.ceil(len(rows_N) / self.batch_size))
