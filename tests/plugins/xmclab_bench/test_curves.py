"""Tuning curves against their definition."""

from __future__ import annotations

import itertools
import statistics

from xmclab_bench.curves import tuning_curve


def test_the_curve_is_the_median_of_the_best_of_n() -> None:
    """Against every way to draw n of the scores, with replacement."""
    scores = [31.0, 35.0, 38.0, 40.0, 44.0]
    curve = tuning_curve(scores)
    assert [point["n"] for point in curve] == [1, 2, 3, 4, 5]
    for point in curve:
        best = [max(some) for some in itertools.product(scores, repeat=point["n"])]
        assert point["median"] == statistics.median_low(best)


def test_the_band_holds_the_curve() -> None:
    for point in tuning_curve([31.0, 35.0, 38.0, 40.0, 44.0, 45.0]):
        assert point["low"] is None or point["low"] <= point["median"]
        assert point["high"] is None or point["high"] >= point["median"]


def test_few_trials_leave_the_band_open() -> None:
    """What n trials reach is bounded above only where many more were run."""
    few, more = tuning_curve([31.0, 35.0]), tuning_curve([30.0 + trial for trial in range(16)])
    assert [point["high"] for point in few] == [None, None]
    assert more[0]["high"] is not None
    assert more[0]["high"] < 45
    assert more[-1]["high"] is None
    assert more[-1]["low"] is not None


def test_a_failed_trial_counts_as_the_worst() -> None:
    assert tuning_curve([None, 40.0, 40.0])[0]["median"] == 40.0
    assert tuning_curve([None, None, 40.0])[0]["median"] == 0.0
    assert tuning_curve([]) == []


def test_a_single_trial_has_an_open_band() -> None:
    assert tuning_curve([40.0]) == [{"n": 1, "median": 40.0, "low": None, "high": None}]
