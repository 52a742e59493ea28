"""Measure alternatives in the same run and report whether a goal is met.

A part is a module in this folder with `measure() -> list[Row]`. Times are medians of interleaved repeats on two threads
(every alternative once per round, so noise hits all of them); only their ratios are meaningful. Memory is the growth of
the peak resident size in a separate process.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

THREADS = 2
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One goal, measured."""

    goal: int  # number of the goal
    what: str  # the part and its inputs
    ours: str  # our measurement, with its unit
    peer: str  # what it is compared with, and that measurement
    value: float  # the number that the goal bounds: a ratio, seconds or bytes
    bound: float
    sense: Literal["<=", ">="] = "<="

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.sense == "<=" else self.value >= self.bound


def interleaved(
    alternatives: Mapping[str, Callable[[], Any]], repeats: int = 7, warmup: int = 1, settle: int = 0
) -> dict[str, float]:
    """Median seconds of each alternative; each runs once per round.

    Args:
        settle: untimed runs right before each timed one, so that memory and caches are in the state that the
            alternative itself leaves, not another one; this matters for times of milliseconds.
    """
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for round_ in range(warmup + repeats):
        for name, run in alternatives.items():
            for _ in range(settle):
                run()
            started = time.perf_counter()
            run()
            if round_ >= warmup:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def without_numba(run: Callable[[], Result]) -> Callable[[], Result]:
    """The same call with the plain numpy and torch versions."""
    from xmclab.kernels import dispatch

    def plain() -> Result:
        before = dispatch.WORTH_A_PASS, dispatch.WORTH_LOADING
        dispatch.WORTH_A_PASS = dispatch.WORTH_LOADING = 1 << 62
        try:
            return run()
        finally:
            dispatch.WORTH_A_PASS, dispatch.WORTH_LOADING = before

    return plain


def peak_growth(module: str, function: str, *arguments: Any) -> int:
    """Bytes by which the peak resident size grows during `module.function(*arguments)()`, in a fresh process.

    The function prepares its inputs and returns a callable; only the call is measured.
    """
    command = [sys.executable, str(Path(__file__)), module, function, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def _child(module: str, function: str, arguments: str) -> None:
    import torch

    torch.set_num_threads(THREADS)
    sys.path.insert(0, str(Path(__file__).parent))
    call = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    print(growth(call))


def growth(call: Callable[[], Any]) -> int:
    """Bytes by which the peak resident size of this process grows during a call."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the preparation
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _child(*sys.argv[1:])
