"""Runs whose results are planted: a cell is "trained" by a formula, so that a whole bench takes no time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab_bench.runner import Launch, Watch

QUERIES = 400
Quality = Callable[[dict[str, Any]], float]  # of a config, in percent; an exception: the run fails


def planted(quality: Quality, epochs: bool = False, seconds: float = 0.0) -> Callable[[int], Any]:
    """A stand-in for `runner.processes` whose runs have this quality.

    Args:
        epochs: validate every epoch, on the way from 0 to the quality, and look for a reason to stop.
        seconds: what a run takes.
    """

    @contextlib.contextmanager
    def processes(threads: int) -> Iterator[Launch]:
        def launch(command: Sequence[str], log: Path, stop: Watch | None = None) -> int:
            overrides, folder = [word for word in command if "=" in word], command[-1]
            config = resolve(overrides, default_registry()).to_dict()
            log.touch()
            time.sleep(seconds)
            try:
                percent = quality(config)
            except InterruptedError:
                return -signal.SIGTERM
            except Exception as error:
                log.write_text(f"error: {error}\n")
                return 5
            return _train(Path(folder), config, percent, stop if epochs else None)

        yield launch

    return processes


def _train(folder: Path, config: dict[str, Any], percent: float, stop: Watch | None) -> int:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    records, search = [], config["validate"]["search"] or "de+clf"
    for epoch in range(1, config["epochs"] + 1):
        value = percent * epoch / config["epochs"]
        record = {"event": "eval", "split": "validation", "epoch": epoch, "metrics": {search: {"P@1": value}}}
        records.append(json.dumps(record) + "\n")
        (folder / "metrics.jsonl").write_text("".join(records))
        if stop is not None and stop():
            return -signal.SIGTERM
    hits_G = np.arange(QUERIES) < round(QUERIES * percent / 100)
    shuffled_G1 = (
        np.random.default_rng([config["seed"], round(percent * 100)]).permutation(hits_G)[:, None].astype(float)
    )
    np.savez(
        folder / "points.npz", metrics=np.array(["P@1"]), **{"found de+clf": shuffled_G1}, best=np.ones((QUERIES, 1))
    )
    metrics = {"de+clf": {"P@1": percent}}
    document = {
        "metrics": metrics,
        "validation": {
            "metric": "P@1",
            "search": search,
            "epoch": config["epochs"],
            "metrics": {search: {"P@1": percent}},
            "queries": 9,
        },
        "data": {"name": "tiny", "sha256": "0", "train": 1262, "test": QUERIES, "labels": 922},
        "seconds": {"train": 1.0},
        "seed": config["seed"],
        "baselines": {},
    }
    (folder / "result.json").write_text(json.dumps(document))
    return 0


def exits_in(trial: int) -> Quality:
    """A quality that kills the process, as a power cut does, in the middle of this trial of its own."""
    count = 0

    def quality(config: dict[str, Any]) -> float:
        nonlocal count
        count += 1
        if count > trial:
            os._exit(9)
        return 10.0 * count

    return quality
