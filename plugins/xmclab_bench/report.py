"""Run folders side by side, from any source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab_bench.document import Document, Group, Wanted, compare
from xmclab_bench.run_folder import Run, read_run

MEASURES = ("train", "memory", "pool", "positives")


def compare_folders(folders: Sequence[Path], metrics: Sequence[str]) -> Document:
    """The comparison of these runs; runs that differ only in their seed share a row.

    Raises:
        ConfigError: no run has one of the metrics.
        DataError: a folder is not a run, or damaged.
    """
    runs = [read_run(folder) for folder in dict.fromkeys(folders)]
    known = {metric for run in runs for row in run.metrics.values() for metric in row}
    unknown = [metric for metric in metrics if known and metric not in known]
    if unknown:
        raise ConfigError(
            *(Problem("--metrics", f"no run has {name!r}", did_you_mean(name, known)) for name in unknown)
        )
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        tree = {key: value for key, value in run.config.items() if key != "seed"}
        by_config.setdefault(json.dumps(tree, sort_keys=True), []).append(run)
    groups = [Group(_name(some, runs), "", some) for some in by_config.values()]
    searches = list(dict.fromkeys(search for run in runs for search in run.metrics))
    title = groups[0].name if len(groups) == 1 else f"{len(groups)} runs"
    return compare(groups, Wanted("report", title, metrics, searches, MEASURES))


def _name(group: Sequence[Run], runs: Sequence[Run]) -> str:
    """The name of the first folder; its path where two folders have that name."""
    folder = group[0].folder
    shared = sum(run.folder.name == folder.name for run in runs) > 1
    return str(folder) if shared else folder.resolve().name
