"""Differences between rows against plain loops, and the laws of their p-values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from xmclab_bench.statistics import Difference, Points, difference, drawn, flipped, holm


def points(found: np.ndarray, best: np.ndarray | None = None) -> Points:
    found_GM = np.asarray(found, np.float64)[:, None]
    return Points(("P@1",), found_GM, np.ones_like(found_GM) if best is None else np.asarray(best)[:, None])


def between(a: list[Points], b: list[Points], draws: int, seed: int = 0) -> Difference:
    rows = {"a": a, "b": b}
    values = drawn(rows, draws, seed)
    return difference(values["a"][:, 0], values["b"][:, 0], flipped(rows, draws, seed)["a", "b"][0])


def test_the_first_entry_is_the_metric_and_the_rest_are_ratios_of_drawn_sums() -> None:
    rng = np.random.default_rng(0)
    found, best = rng.random((2, 30, 1)).reshape(2, 30)
    one, two = points(found, best), points(found[::-1].copy(), best)
    values = drawn({"a": [one, two], "b": [two]}, draws=5, seed=3)
    assert values["a"].shape == (6, 1)
    expected = [100 * found.sum() / best.sum(), 100 * found[::-1].sum() / best.sum()]
    assert values["a"][0, 0] == pytest.approx(np.mean(expected))
    draws, seeds = np.random.default_rng(3), np.random.default_rng([3, 0]).integers(2, size=(5, 2))
    assert len(np.unique(seeds[:, 0] + seeds[:, 1])) > 1
    for entry in range(1, 6):
        chosen = draws.integers(30, size=30)
        by_hand = [100 * sum(f[i] for i in chosen) / sum(best[i] for i in chosen) for f in (found, found[::-1])]
        assert values["a"][entry, 0] == pytest.approx(np.mean([by_hand[seed] for seed in seeds[entry - 1]]))
        assert values["b"][entry, 0] == pytest.approx(by_hand[1])


def test_intervals_hold_what_other_seeds_would_change() -> None:
    rng = np.random.default_rng(4)
    a, b = ([points(rng.random(4000) < level) for level in levels] for levels in ((0.4, 0.5, 0.6), (0.45, 0.46, 0.47)))
    assert between(a[1:2], b[:1], draws=500).p < 0.05
    found = between(a, b, draws=500)
    assert found.high - found.low > 10  # percent; of the queries alone it would be 3
    assert found.p > 0.05


def test_rows_of_the_same_seeds_are_compared_seed_by_seed() -> None:
    rng = np.random.default_rng(5)
    levels = (0.3, 0.5, 0.7)
    a = [points(rng.random(4000) < level) for level in levels]
    b = [points(some.found_GM[:, 0] * (rng.random(4000) < 0.9)) for some in a]
    apart, together = (drawn({"a": a, "b": b}, 500, same_seeds=same) for same in (False, True))
    spread = [np.std(values["a"][1:] - values["b"][1:]) for values in (apart, together)]
    assert spread[1] < spread[0] / 4


def test_rows_of_other_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="same test queries"):
        drawn({"a": [points(np.ones(3))], "b": [points(np.ones(4))]})


def test_equal_rows_do_not_differ() -> None:
    row = points(np.random.default_rng(0).integers(0, 2, 200))
    found = between([row], [row], draws=200)
    assert (found.value, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_clear_difference_is_real_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(0)
    better = rng.random(500) < 0.6
    worse = better & (rng.random(500) < 0.7)
    found = between([points(better)], [points(worse)], draws=500)
    assert found.low < found.value < found.high
    assert found.low > 0
    assert found.p == pytest.approx(2 / 501)
    mirrored = between([points(worse)], [points(better)], draws=500)
    assert (mirrored.value, mirrored.low, mirrored.high, mirrored.p) == pytest.approx(
        (-found.value, -found.high, -found.low, found.p)
    )


def test_pairing_takes_out_how_hard_the_queries_are() -> None:
    rng = np.random.default_rng(1)
    a = rng.random(400) < 0.5
    b = a.copy()
    b[np.flatnonzero(a)[:12]] = False
    assert between([points(a)], [points(b)], draws=400).p < 0.01
    assert between([points(a)], [points(rng.permutation(b))], draws=400).p > 0.05


@pytest.mark.parametrize(("wins", "losses"), [(4, 0), (8, 0), (9, 2), (12, 12)])
def test_where_few_queries_differ_p_is_that_of_the_sign_test(wins: int, losses: int) -> None:
    a, b = np.zeros(400), np.zeros(400)
    a[:wins] = 1
    b[wins : wins + losses] = 1
    p_flipped = flipped({"a": [points(a)], "b": [points(b)]}, draws=20_000)["a", "b"][0]
    exact = stats.binomtest(wins, wins + losses).pvalue
    assert p_flipped == pytest.approx(exact, abs=0.012)
    assert between([points(a)], [points(b)], draws=1000).p >= exact - 0.03


def test_level_under_no_difference() -> None:
    """Rows that differ by chance only are called different about as often as the level says."""
    rng = np.random.default_rng(2)
    called = 0
    for trial in range(200):
        a, b = (points(rng.random(150) < 0.5) for _ in range(2))
        called += between([a], [b], draws=200, seed=trial).p < 0.05
    assert 2 <= called <= 22


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5]) == [0.5]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
