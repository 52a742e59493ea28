"""No mined negatives: a query's negatives are the other queries' positives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Miner

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class NoMiner(Miner):
    """No negatives beyond the positives of the other queries."""

    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, 0]."""
        return np.empty((len(rows_Q), 0), dtype=np.int64)
