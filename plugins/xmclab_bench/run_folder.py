"""A run folder as reports see it: finished, failed or still training."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xmclab.errors import ConfigError, DataError, Problem
from xmclab.host.recipes import read_plain
from xmclab.system.limits import BeyondLimit, check
from xmclab.system.reading import UNREADABLE, load_arrays, read_json, read_json_lines
from xmclab_bench.statistics import Points

Record = Mapping[str, Any]
FIELDS = {  # of records by their event, needed and optional: in mappings of this depth, numbers
    "step": (dict.fromkeys(("last_of_epoch", "epoch", "queries", "pool", "positives", "loss"), 0), {"complete": 1}),
    "eval": ({"epoch": 0, "metrics": 2}, {"seconds": 0}),
}
NONE: Mapping[str, int] = {}
LARGEST = 1e300  # of a number in these files
SILENT = 600.0  # seconds of silence after which a run has probably stopped


@dataclass(frozen=True)
class Measure:
    """A number of a run, shown beside its metrics."""

    heading: str  # of a column
    axis: str  # of a chart


TARGET = "target"
MEASURES = {
    "train": Measure("train s", "training, s"),
    TARGET: Measure("s to target", "time to target, s"),
    "memory": Measure("MiB", "peak memory, MiB"),  # of the process, on a GPU of the device
    "queries": Measure("queries", "queries per batch"),
    "pool": Measure("pool", "labels per pool"),
    "positives": Measure("positives", "positives per query"),
    "epochs": Measure("epochs", "epochs"),
    # Of the queries with a head, torso or tail label: those whose positives are all in the pool.
    **{
        f"complete_{band}": Measure(f"all of {band}, %", f"all positives, {band}, %")
        for band in ("head", "torso", "tail")
    },
}
# The files of a run folder that reports read; `xmclab.runs.store` says more, and imports torch.
CONFIG, ENVIRONMENT, RECORDS, RESULT, POINTS = (
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "result.json",
    "points.npz",
)


@dataclass(frozen=True)
class Run:
    """What is known about a run so far."""

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    records: Sequence[Record]  # of its tracker: steps, refreshes, evaluations
    document: Mapping[str, Any] | None  # the result; None while it trains, or if it failed

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def state(self) -> str:
        """`finished`, `training`, `unfinished` (stopped, or very slow), or how it failed."""
        if self.document is not None:
            return "finished"
        last = self.records[-1] if self.records else {}
        measured = ", numbers of its validation queries" if self.validates else ""
        if last.get("event") == "end" and last.get("error"):
            return f"failed after epoch {self.epochs_done} ({last['error']}: {last.get('message')}){measured}"
        done = f"{self.epochs_done} of {self.config['epochs']} epochs done{measured}"
        file = self.folder / RECORDS
        silent = time.time() - file.stat().st_mtime if file.is_file() else 0.0
        if silent < SILENT:
            return f"training, {done}"
        return f"unfinished, {done}, nothing written for {silent / 60:.0f} minutes"

    @property
    def epochs_done(self) -> int:
        return sum(step["last_of_epoch"] for step in self.steps)

    @property
    def evaluations(self) -> list[Record]:
        """On the validation queries of a run that has them, otherwise on the test queries."""
        found = [record for record in self.records if record["event"] == "eval"]
        return [record for record in found if is_validation(record)] or found

    @property
    def validates(self) -> bool:
        """Whether the evaluations are of validation queries."""
        return any(map(is_validation, self.evaluations))

    @property
    def steps(self) -> list[Record]:
        return [record for record in self.records if record["event"] == "step"]

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Search -> metric -> percent: of the result, or of the latest evaluation."""
        if self.document is not None:
            found: Mapping[str, Mapping[str, float]] = self.document["metrics"]
            return found
        return self.evaluations[-1]["metrics"] if self.evaluations else {}

    def points(self, search: str) -> Points | None:
        """What each test query contributes to the final metrics of a search."""
        file = self.folder / POINTS
        if self.document is None or not file.is_file():
            return None
        try:
            with load_arrays(file) as arrays:
                if f"found {search}" not in arrays:
                    return None
                return Points(tuple(arrays["metrics"].tolist()), arrays[f"found {search}"], arrays["best"])
        except (OSError, *UNREADABLE) as error:
            raise DataError(Problem(str(file), f"cannot be read: {' '.join(str(error).split())}")) from error

    def measure(self, name: str) -> float | None:
        """One of `MEASURES` except the target, which depends on the search; None if the run does not record it."""
        if name == "epochs":
            return float(self.config["epochs"])
        if name in ("queries", "pool", "positives"):
            return float(np.mean([step[name] for step in self.steps])) if self.steps else None
        if name.startswith("complete_"):
            band = name.removeprefix("complete_")
            shares = [step["complete"][band] for step in self.steps if band in step.get("complete", {})]
            return 100 * float(np.mean(shares)) if shares else None
        if self.document is None:
            return None
        if name == "train":
            return float(self.document["seconds"]["train"]) + self._before
        memory = self.document.get("memory", {})
        peak = memory.get("device_peak") or memory.get("peak")
        return None if peak is None else peak / 2**20

    def seconds_to(self, search: str, metric: str, percent: float) -> float | None:
        """Seconds of training until an evaluation of a search first reached it; None if none did."""
        for record in self.evaluations:
            if record["metrics"].get(search, {}).get(metric, 0.0) >= percent:
                seconds = record.get("seconds")
                return None if seconds is None else float(seconds) + self._before
        return None

    @property
    def _before(self) -> float:
        """Seconds of training of the stages before the last, which all the rest is about."""
        stages = (self.document or {}).get("stages", {}).values()
        return sum(float(stage["seconds"]["train"]) for stage in stages)


def is_validation(evaluation: Record) -> bool:
    """Whether its queries are those for validation; runs of earlier versions only knew test queries."""
    return evaluation.get("split") == "validation"


def read_run(folder: Path) -> Run:
    """A run folder, in any state.

    Raises:
        DataError: it is not a run folder, or a file in it is damaged.
    """
    if not (folder / CONFIG).is_file():
        raise DataError(Problem(str(folder), "not a run folder", f"it has no {CONFIG}"))
    try:
        config = read_plain(folder / CONFIG)
        environment = _json(folder / ENVIRONMENT) or {}
        run = Run(folder, config, environment, _records(folder / RECORDS), _json(folder / RESULT))
        _check(run)
        return run
    except ConfigError as error:
        raise DataError(*error.problems) from error
    except BeyondLimit as error:
        raise DataError(error.at(str(folder))) from error
    except (OSError, ValueError) as error:
        raise DataError(Problem(str(folder), f"cannot be read: {' '.join(str(error).split())}")) from error


def _check(run: Run) -> None:
    """ValueError if anything that reports read is missing, or is not what it should be."""
    _check_fields(CONFIG, run.config, {"seed": 0, "epochs": 0})
    if run.document is not None:
        nested = {"bands": 3, "baselines": 2, "memory": 1}
        _check_fields(RESULT, run.document, {"metrics": 2, "data": None, "seconds": 1}, nested)
        if not isinstance(run.document["data"], dict) or not isinstance(run.document["data"].get("sha256"), str):
            raise ValueError(f"{RESULT}: its data have no sha256")
        _check_fields(RESULT, run.document["seconds"], {"train": 0})
    for record in run.records:
        needed, optional = FIELDS.get(str(record.get("event")), ({"event": None}, {}))
        _check_fields(RECORDS, record, needed, optional)


def _check_fields(
    file: str, holder: Mapping[str, Any], needed: Mapping[str, int | None], optional: Mapping[str, int] = NONE
) -> None:
    """ValueError unless the fields hold numbers in mappings of these depths; None: anything."""
    for key, depth in {**optional, **needed}.items():
        if (key in holder or key in needed) and (key not in holder or not _numbers(holder[key], depth)):
            raise ValueError(f"{file}: {key!r} is missing or invalid")


def _numbers(value: Any, depth: int | None) -> bool:
    if depth == 0:
        return isinstance(value, (int, float)) and not abs(value) > LARGEST
    return depth is None or (isinstance(value, dict) and all(_numbers(each, depth - 1) for each in value.values()))


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    return _mapping(read_json(file), file)


def _records(file: Path) -> list[Record]:
    """The lines of the file; the last one may be incomplete."""
    if not file.is_file():
        return []
    check("records", file.stat().st_size, f"{RECORDS} has")
    return [_mapping(record, file) for record in read_json_lines(file, complete=True)]


def _mapping(value: Any, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{file.name}: not a JSON object")
    return value
