"""Run folders side by side, from any source."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab_bench.document import Baselines, Document, Group, Wanted, compare
from xmclab_bench.run_folder import Run, read_run
from xmclab_bench.spec import METRICS

SEED = re.compile(r"[-_. ]+(?:seed[-_=. ]?|s)?\d+$")  # at the end of a folder's name
MEASURES = ("train", "memory", "pool", "positives")


def compare_folders(folders: Sequence[Path], metrics: Sequence[str] | None) -> Document:
    """The comparison of these runs; runs that differ only in their seed share a row, repeated ones do not.

    Args:
        metrics: what is shown; None: P and PSP at the cut-offs of the runs.

    Raises:
        ConfigError: no run has one of the metrics.
        DataError: a folder is not a run, or damaged.
    """
    runs = [read_run(folder) for folder in dict.fromkeys(folders)]
    known = dict.fromkeys(metric for run in runs for row in run.metrics.values() for metric in row)
    if metrics is None:
        metrics = [name for kind in ("P@", "PSP@") for name in known if name.startswith(kind)] or list(METRICS)
    unknown = [metric for metric in metrics if known and metric not in known]
    if unknown:
        raise ConfigError(
            *(Problem("--metrics", f"no run has {name!r}", did_you_mean(name, known)) for name in unknown)
        )
    rows = _shared_rows(runs)
    groups = [Group(name, "", some) for name, some in zip(_names(rows, runs), rows, strict=True)]
    searches = list(dict.fromkeys(search for run in runs for search in run.metrics))
    title = groups[0].name if len(groups) == 1 else f"{len(groups)} runs"
    baselines = [
        Baselines(run.document["data"]["sha256"], run.document.get("baselines", {})) for run in runs if run.document
    ]
    paths = sorted(str(run.folder.resolve()) for run in runs)
    fingerprint = hashlib.sha256(json.dumps(paths).encode()).hexdigest()[:20]
    wanted = Wanted("report", title, metrics, searches, MEASURES, fingerprint=fingerprint, baselines=baselines)
    return compare(groups, wanted)


def _shared_rows(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of each row; the second run of a config and seed begins another row."""
    rows: dict[tuple[str, int], list[Run]] = {}
    seen: Counter[str] = Counter()
    for run in runs:
        same = dict(run.config)
        if run.document:  # the same data may be in several places
            same["data"] = {**same.get("data", {}), "source": run.document["data"]["sha256"]}
        config = json.dumps(same, sort_keys=True)
        of_any_seed = json.dumps({key: value for key, value in same.items() if key != "seed"}, sort_keys=True)
        rows.setdefault((of_any_seed, seen[config]), []).append(run)
        seen[config] += 1
    return list(rows.values())


def _names(rows: Sequence[Sequence[Run]], runs: Sequence[Run]) -> list[str]:
    """The name of each row: `ds` for the folders `ds-0` and `ds-1`, unless another row has that name."""
    names = [_name(some, runs) for some in rows]
    stems = [{SEED.sub("", run.folder.resolve().name) for run in some} if len(some) > 1 else set() for some in rows]
    short = [some.pop() if len(some) == 1 else name for some, name in zip(stems, names, strict=True)]
    taken = Counter([*short, *names])
    return [ours if ours and taken[ours] == 1 else name for ours, name in zip(short, names, strict=True)]


def _name(group: Sequence[Run], runs: Sequence[Run]) -> str:
    """The name of the first folder; its path where two folders have that name."""
    folder = group[0].folder
    shared = sum(run.folder.name == folder.name for run in runs) > 1
    return str(folder) if shared else folder.resolve().name
