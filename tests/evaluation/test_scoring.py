"""Scoring a ranking: places that hold no label do not count."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.data.propensity import DEFAULT_PROPENSITY
from xmclab.evaluation.scoring import Evaluator


def test_padding_never_reaches_the_metrics() -> None:
    """-1, which faiss gives where it finds nothing, is neither the last label nor a place taken."""
    truth = sp.csr_array(np.eye(3, 4))
    ranking = Ranking(np.array([[0, -1], [-1, -1], [2, -1]]), np.zeros((3, 2), np.float32))
    found = Evaluator(truth, truth, DEFAULT_PROPENSITY).scores(ranking, draws=10)
    assert found.metrics["P@1"] == pytest.approx(200 / 3)
    last = sp.csr_array(np.array([[0, 0, 0, 1]] * 3))
    assert Evaluator(last, truth, DEFAULT_PROPENSITY).scores(ranking, draws=10).metrics["P@1"] == 0
