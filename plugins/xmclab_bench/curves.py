"""Tuning curves: the score that n random trials reach, with exact bands (Lourie, He and Cho, 2024).

Formula:  median best of n trials = F^-1(0.5^(1/n)), F the distribution of a single trial's score
Where:    F is the empirical one; its simultaneous 95 % band gives that of the curve
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

CONFIDENCE = 0.95
WORST, BEST = 0.0, 100.0  # of a metric in percent


def tuning_curve(scores: Sequence[float | None]) -> list[dict[str, Any]]:
    """`n`, `median`, `low` and `high` for n up to the number of trials; None: the band is open there.

    Args:
        scores: of independent random trials; None of one that failed, which counts as the worst.
    """
    from opda.nonparametric import EmpiricalDistribution

    reached = np.array([WORST if score is None else score for score in scores])
    if len(reached) < 2:  # one trial says nothing about others
        return [{"n": 1, "median": float(score), "low": None, "high": None} for score in reached]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicates", RuntimeWarning)  # ties only make the band too wide
        lower_cdf, cdf, upper_cdf = EmpiricalDistribution.confidence_bands(
            reached, CONFIDENCE, a=WORST, b=BEST, generator=np.random.default_rng(0), n_jobs=1
        )
    trials = np.arange(1, len(reached) + 1)
    curves = (each.quantile_tuning_curve(trials) for each in (cdf, upper_cdf, lower_cdf))
    return [
        {
            "n": int(n),
            "median": float(median),
            "low": float(low) if low > WORST else None,
            "high": float(high) if high < BEST else None,
        }
        for n, median, low, high in zip(trials, *curves, strict=True)
    ]
