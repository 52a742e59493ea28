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

ROUNDS = 5
POOL = ["epochs=3"]
ALL_LABELS = ["epochs=1", "head.de=none", "loss.clf=bce", "reduction.clf=ova"]
NO_BIAS = ["head.clf.bias=none"]
EARLIER = [*NO_BIAS, "encoder.towers=shared", "pool.beta=3", "search=heads"]
# (what, overrides of both, what the other run goes without, {part of the time: bound})
PAIRS = (
    (
        "unidec, 3 epochs",
        POOL,
        ("shared towers, 3 positives, no bias, no vote", EARLIER),
        {"train": 1.33, "evaluate": 2},
    ),
    ("unidec, 3 epochs", POOL, ("no bias", NO_BIAS), {"train": 1.03}),
    ("BCE over all labels, 1 epoch", ALL_LABELS, ("no bias", NO_BIAS), {"train": 1.03}),
)


def seconds(overrides: list[str]) -> dict[str, float]:
    """The times of a run on the embedded data that mines before every epoch but the first."""
    fixed = ["recipe=unidec", "refresh_every=1", "baseline=none", "keep_model=false"]
    with tempfile.TemporaryDirectory() as folder:
        return run(resolve([*fixed, *overrides], default_registry()), Path(folder) / "run").document["seconds"]


def measure() -> list[Row]:
    rows = []
    for what, shared, (without, overrides), bounds in PAIRS:
        seconds([*shared, "epochs=1"])  # compiles and caches what the others then find
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(seconds(shared))
            theirs.append(seconds([*shared, *overrides]))
        for part, bound in bounds.items():
            here, there = (statistics.median(each[part] for each in times) for times in (ours, theirs))
            ratio = statistics.median(a[part] / b[part] for a, b in zip(ours, theirs, strict=True))
            rows.append(Row(13, f"{what}: {part}", f"{here:.1f} s", f"{without}: {there:.1f} s", ratio, bound))
    return rows


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    print(measure())
