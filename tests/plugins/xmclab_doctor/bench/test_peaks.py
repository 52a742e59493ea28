"""Peaks are the best of several, and make the speeds of a roof."""

from __future__ import annotations

import time

import torch

from xmclab_doctor.bench.peaks import Peaks, best
from xmclab_doctor.bench.roof import Speeds


def test_the_best_of_several_counts_and_the_first_does_not() -> None:
    naps = iter([0.0, 0.02, 0.005, *[0.02] * 50])
    assert 0.005 <= best(torch.device("cpu"), lambda: time.sleep(next(naps)), 0.1) < 0.02


def test_the_roof_takes_the_fastest_products() -> None:
    peaks = Peaks({"float32": 2.0, "float16": 9.0, "bfloat16": 8.0}, 3.0, None, None, 1.0)
    assert peaks.speeds() == Speeds(9.0, 2.0, 3.0)
    assert Peaks({"float32": 2.0}, 3.0, None, None, 1.0).speeds() == Speeds(2.0, 2.0, 3.0)
