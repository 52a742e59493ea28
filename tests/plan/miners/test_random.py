"""Random negatives are none of the query's labels."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from xmclab.plan.miners.random import RandomMiner


def test_random_negatives_are_uniform_over_the_allowed_labels() -> None:
    exclude = sp.csr_array(np.array([[1, 0, 0, 1, 0, 0, 1]], dtype=bool))
    drawn = RandomMiner().sample(np.zeros(6000, dtype=np.int64), 2, exclude, np.random.default_rng(0))
    share = np.bincount(drawn.ravel(), minlength=7) / len(drawn)
    assert (share[[0, 3, 6]] == 0).all()
    assert np.abs(share[[1, 2, 4, 5]] - 0.5).max() < 0.03


def test_random_negatives_of_a_matrix_with_repeated_entries() -> None:
    exclude = sp.csr_array((np.ones(4), np.array([3, 0, 3, 0]), np.array([0, 4])), shape=(1, 5))
    drawn = RandomMiner().sample(np.array([0]), 4, exclude, np.random.default_rng(0))
    assert sorted(drawn[0].tolist()) == [-1, 1, 2, 4]
