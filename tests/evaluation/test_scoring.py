"""Scoring a ranking: places that hold no label do not count."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.data.propensity import DEFAULT_PROPENSITY, Propensity
from xmclab.evaluation.scoring import Evaluator


def test_padding_never_reaches_the_metrics() -> None:
    """-1, which faiss gives where it finds nothing, is neither the last label nor a place taken."""
    truth = sp.csr_array(np.eye(3, 4))
    ranking = Ranking(np.array([[0, -1], [-1, -1], [2, -1]]), np.zeros((3, 2), np.float32))
    found = Evaluator(truth, truth, DEFAULT_PROPENSITY).scores(ranking, draws=10)
    assert found.metrics["P@1"] == pytest.approx(200 / 3)
    last = sp.csr_array(np.array([[0, 0, 0, 1]] * 3))
    assert Evaluator(last, truth, DEFAULT_PROPENSITY).scores(ranking, draws=10).metrics["P@1"] == 0


def test_cut_offs_and_propensities_are_those_of_the_settings() -> None:
    """P@2 and PSP@2 of one row by hand: the first label is true, the second is not."""
    train = sp.csr_array(np.array([[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1]]))
    truth = sp.csr_array(np.array([[1, 0, 1]]))
    ranking = Ranking(np.array([[0, 1, 2]]), np.zeros((1, 3), np.float32))
    found = Evaluator(truth, train, Propensity(0.6, 2.6), (2, 3), (2,))
    metrics = found.scores(ranking, draws=10).metrics
    assert list(metrics) == [f"{kind}@{k}" for kind in ("P", "PSP", "nDCG", "PSnDCG") for k in (2, 3)] + [
        "R@2",
        "PSR@2",
    ]
    assert (metrics["P@2"], metrics["R@2"]) == (50, 50)
    scale = (np.log(4) - 1) * 3.6**0.6
    often, once = (1 + scale * (count + 2.6) ** -0.6 for count in (3, 1))
    assert metrics["PSP@2"] == pytest.approx(100 * often / (often + once))
    assert set(found.bands(ranking)["tail"]) == set(metrics)
