"""Goal 13: what the newer parts of `unidec` cost: residual towers, ten positives, the bias and the vote."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import torch
from harness import THREADS, Row

from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run

EPOCHS, ROUNDS = 3, 3
RUNS = {
    "unidec": [],
    "without": ["encoder.towers=shared", "pool.beta=3", "head.clf.bias=none", "search=heads"],
}
BOUNDS = {"train": 1.33, "evaluate": 2.0}  # evaluation has five searches instead of three


def seconds(overrides: list[str]) -> dict[str, float]:
    """The times of a run on the embedded data that mines before every epoch but the first."""
    fixed = ["recipe=unidec", f"epochs={EPOCHS}", "refresh_every=1", "baseline=none", "keep_model=false"]
    with tempfile.TemporaryDirectory() as folder:
        return run(resolve([*fixed, *overrides], default_registry()), Path(folder) / "run").document["seconds"]


def measure() -> list[Row]:
    seconds(["epochs=1"])  # compiles and caches what the others then find
    times: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
    for _ in range(ROUNDS):
        for name, overrides in RUNS.items():
            times[name].append(seconds(overrides))
    rows = []
    for part, bound in BOUNDS.items():
        median = {name: statistics.median(each[part] for each in found) for name, found in times.items()}
        what = f"unidec on debian, {EPOCHS} epochs: {part}"
        peer = f"shared towers, 3 positives, no bias, no vote: {median['without']:.1f} s"
        rows.append(Row(13, what, f"{median['unidec']:.1f} s", peer, median["unidec"] / median["without"], bound))
    return rows


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    print(measure())
