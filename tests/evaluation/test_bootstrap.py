"""Intervals: each draw is the metric of the drawn queries, and they are as wide as statistics says."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.evaluation import bootstrap
from xmclab.evaluation.metrics import evaluate, ranking_from_scores

KS = (1, 3, 5)
NAMES = [f"{kind}@{k}" for kind in ("P", "PSP", "nDCG", "PSnDCG", "R", "PSR") for k in KS]


def problem(rows: int, labels: int = 20) -> tuple[Ranking, sp.csr_array, np.ndarray]:
    rng = np.random.default_rng(0)
    scores = sp.random_array((rows, labels), density=0.4, rng=rng, format="csr")
    truth = sp.csr_array(rng.random((rows, labels)) < 0.08)
    return ranking_from_scores(sp.csr_array(scores), 6), truth, 1 + rng.random(labels)


@pytest.mark.parametrize("groups", [20_000, 7])
def test_the_sums_of_all_rows_are_the_metrics(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "GROUPS", groups)
    ranking, truth, weights = problem(50)
    assert (np.diff(truth.indptr) == 0).any()
    found, best = bootstrap.group_sums(ranking, truth, weights, NAMES, np.random.default_rng(1))
    assert found.shape == (min(groups, 50), len(NAMES))
    whole = evaluate(ranking, truth, weights, KS, KS)
    for name, value in zip(NAMES, 100 * found.sum(axis=0) / best.sum(axis=0), strict=True):
        assert value == pytest.approx(whole[name], abs=1e-12)


def test_a_ranking_that_is_not_deep_enough_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = sp.csr_array(np.eye(3))
    ranking = Ranking(np.array([[0], [1], [-1]]), np.zeros((3, 1), np.float32))
    found, best = bootstrap.group_sums(ranking, truth, np.ones(3), ["P@2", "R@3"], np.random.default_rng(0))
    np.testing.assert_allclose(found.sum(axis=0) / best.sum(axis=0), [1 / 3, 2 / 3])


def test_a_draw_is_the_metric_of_the_drawn_rows() -> None:
    ranking, truth, weights = problem(30)
    draws = 40
    found = bootstrap.intervals(ranking, truth, weights, NAMES, draws, np.random.default_rng(5))

    rng = np.random.default_rng(5)
    order = rng.permutation(30)
    row_of_group = np.argsort(order % 30)
    values = []
    for _ in range(draws):
        rows = row_of_group[rng.integers(30, size=30)]
        drawn = Ranking(ranking.ids_NK[rows], ranking.scores_NK[rows])
        values.append(evaluate(drawn, sp.csr_array(truth[rows]), weights, KS, KS))
    for name in NAMES:
        low, high = np.quantile([value[name] for value in values], [0.025, 0.975])
        assert found[name] == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize("groups", [20_000, 500])
def test_intervals_are_as_wide_as_those_of_a_mean(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P@1 is a mean of zeros and ones, whose standard error is known; groups do not change it."""
    monkeypatch.setattr(bootstrap, "GROUPS", groups)
    rng = np.random.default_rng(0)
    rows, share = 4000, 0.3
    truth = sp.csr_array(np.stack([rng.random(rows) < share, np.ones(rows)], axis=1))
    ranking = Ranking(np.zeros((rows, 1), np.int64), np.zeros((rows, 1), np.float32))
    [(low, high)] = bootstrap.intervals(ranking, truth, np.ones(2), ["P@1"], 2000, np.random.default_rng(1)).values()
    error = 100 * np.sqrt(share * (1 - share) / rows)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert low < 100 * truth.toarray()[:, 0].mean() < high


def test_the_same_seed_gives_the_same_intervals() -> None:
    arguments = (*problem(20), NAMES, 50)
    first, second, other = (bootstrap.intervals(*arguments, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != other
