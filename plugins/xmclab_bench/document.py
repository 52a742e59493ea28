"""The document that all reports are made from: rows of runs, their numbers, and which differences are real.

{"name", "title", "metrics", "searches", "measures", "target", "budget", "columns", "seeds", "command", "date",
 "reference",                                                      the row to compare with; empty: the best
 "fingerprint",                                                    equal if the same comparison is repeated
 "verdict":  {"search", "metric", "sentences"},                    what was found, in words: the headline
 "verdicts": [{"column", "search", "metric", "leader", "best", "sentences"}],      best: better than every other row
 "data":     [{"name", "sha256", "train", "test", "labels", "propensity"}],        one, unless runs of several are shown
 "environment",                                                    of the first run
 "rows":     [{"name", "column", "search", "metrics": {P@1: {"mean", "sd", "values", "best"}}, "bands", "target"}],
 "baselines": [{"name", "data", "metrics"}],                       data: its sha256
 "predictions": [{"name", "file", "data", "metrics"}],             of other programs
 "groups":   [{"name", "column", "seeds", "epochs", "state", "measures", "curves", "pool", "differs"}],   all searches
 "tests":    [{"search", "column", "metric", "a", "b", "value", "low", "high", "p"}],      a, b: rows of a search;
                                                                                          b: or predictions
 "heads":    [{"name", "column", "metric", "a", "b", "value", "low", "high", "p"}],        a, b: searches of a row
 "left_out": [{"name", "column", "seed", "reason"}],                             cells that failed or cannot exist
 "tuning":   {"trials", "metric",                                                null if rows were not tuned
              "rows": [{"name", "column", "chosen", "draws", "scores", "curve": [{"n", "median", "low", "high"}]}]}}

All values are JSON values, numbers unrounded.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmclab.errors import DataError, Problem
from xmclab.host.recipes import STAGES, below, stage_of
from xmclab.system.limits import BeyondLimit
from xmclab.system.reading import read_json
from xmclab_bench.predictions import Predictions
from xmclab_bench.run_folder import CONFIG, TARGET, Run
from xmclab_bench.statistics import Points, differences
from xmclab_bench.verdict import judged

DOCUMENT = "document.json"
KEYS = (
    *("name", "title", "metrics", "searches", "measures", "target", "budget", "columns", "seeds"),
    *("data", "environment", "rows", "groups", "tests", "heads", "left_out"),
)
LATER: Mapping[str, Any] = {  # keys that documents of earlier versions lack
    **dict.fromkeys(("reference", "fingerprint", "command", "date"), ""),
    "baselines": [],
    "predictions": [],
    "tuning": None,
    "chosen": {},
}
Document = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """The runs of a row (and column) that differ in their seed."""

    name: str
    column: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class Baselines:
    """The metrics of baselines on the test queries of a data set."""

    data: str  # its sha256
    metrics: Mapping[str, Mapping[str, float]]  # by name


@dataclass(frozen=True)
class Wanted:
    """What a comparison shows."""

    name: str
    title: str
    metrics: Sequence[str]
    searches: Sequence[str]
    measures: Sequence[str] = ()
    target: tuple[str, float] | None = None
    budget: str = "steps"
    left_out: Sequence[Mapping[str, Any]] = field(default_factory=list)
    columns: str = ""  # the key whose values are the columns
    reference: str = ""  # the row to compare with; empty: the best
    fingerprint: str = ""
    baselines: Sequence[Baselines] = ()
    predictions: Sequence[Predictions] = ()
    tuning: Mapping[str, Any] | None = None
    chosen: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # by row: settings that were chosen for it earlier


def compare(groups: Sequence[Group], wanted: Wanted) -> Document:
    """The comparison of these groups."""
    rows = [row for group in groups for search in wanted.searches if (row := _row(group, search, wanted)) is not None]
    found: Document = {
        **LATER,
        "name": wanted.name,
        "title": wanted.title,
        "metrics": list(wanted.metrics),
        "searches": [search for search in wanted.searches if any(row["search"] == search for row in rows)],
        "measures": list(wanted.measures),
        "target": list(wanted.target) if wanted.target else None,
        "budget": wanted.budget,
        "columns": wanted.columns,
        "seeds": sorted({run.seed for group in groups for run in group.runs}),
        "data": list(_data_of(groups).values()),
        "environment": next((run.environment for group in groups for run in group.runs if run.environment), {}),
        "reference": wanted.reference,
        "fingerprint": wanted.fingerprint,
        "rows": rows,
        "baselines": list(_baselines(wanted)),
        "predictions": [
            {"name": each.name, "file": each.file, "data": each.data, "metrics": _once(each.metrics, wanted)}
            for each in wanted.predictions
        ],
        "groups": [
            _group(group, wanted, differing) for group, differing in zip(groups, _differing(groups), strict=True)
        ],
        "tests": [*_tests(groups, wanted), *_tests_of_predictions(groups, wanted)],
        "heads": list(_heads(groups, wanted)),
        "left_out": list(wanted.left_out),
        "tuning": wanted.tuning,
        "chosen": {} if wanted.tuning else {row: list(settings) for row, settings in wanted.chosen.items()},
    }
    return judged(found)


def _baselines(wanted: Wanted) -> Iterable[dict[str, Any]]:
    """The baselines of every data set, each once."""
    first: dict[tuple[str, str], Mapping[str, float]] = {}
    for some in wanted.baselines:
        for name, metrics in some.metrics.items():
            first.setdefault((some.data, name), metrics)
    for (data, name), metrics in first.items():
        yield {"name": name, "data": data, "metrics": _once(metrics, wanted)}


def _once(metrics: Mapping[str, float], wanted: Wanted) -> dict[str, dict[str, Any]]:
    """The wanted metrics of something that was measured once."""
    return {metric: {**summary_of([metrics[metric]]), "best": False} for metric in wanted.metrics if metric in metrics}


def document_at(path: Path) -> Path | None:
    """The file, or the one in this folder, that holds a document; None if this is a run folder, or nothing."""
    if path.is_file():
        return path
    file = path / DOCUMENT
    return file if file.is_file() and not (path / CONFIG).is_file() else None


def read_document(file: Path) -> Document:
    """What was written as `document.json`.

    Raises:
        DataError: it cannot be read, or is not a document.
    """
    try:
        document = read_json(file)
    except BeyondLimit as error:
        raise DataError(error.at(str(file))) from error
    except (OSError, ValueError) as error:
        raise DataError(Problem(str(file), f"cannot be read: {error}")) from error
    missing = [key for key in KEYS if not isinstance(document, dict) or key not in document]
    if missing:
        hint = f"missing: {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        raise DataError(Problem(str(file), f"not a {DOCUMENT} of a bench or report", hint))
    return completed(document)


def completed(document: Document) -> Document:
    """The document with the keys that an earlier version did not write."""
    found = {**LATER, **document}
    return found if "verdicts" in found else judged(found)


def _data_of(groups: Sequence[Group]) -> dict[str, Any]:
    """What the finished runs were trained and measured on, by the hash of its bytes and the propensity model."""
    found: dict[str, Any] = {}
    for document in (run.document for group in groups for run in group.runs if run.document):
        propensity = document.get("propensity")  # runs of earlier versions do not tell
        numbers = [propensity["A"], propensity["B"]] if propensity else []
        told = {"propensity": propensity} if propensity else {}
        found[_data_key(document["data"]["sha256"], numbers)] = {**document["data"], **told}
    return found


def _data_key(sha256: str, propensity: Sequence[float]) -> str:
    return f"{sha256} {list(propensity)}"


def summary_of(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation over seeds; one seed has no deviation."""
    return {
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


def _row(group: Group, search: str, wanted: Wanted) -> dict[str, Any] | None:
    runs = [run for run in group.runs if search in run.metrics]
    if not runs:
        return None
    shown = {
        metric: {**summary_of([run.metrics[search][metric] for run in runs]), "best": False}
        for metric in wanted.metrics
        if all(metric in run.metrics[search] for run in runs)
    }
    seconds = [run.seconds_to(search, *wanted.target) for run in runs] if wanted.target else []
    reached = [value for value in seconds if value is not None]
    return {
        "name": group.name,
        "column": group.column,
        "search": search,
        "metrics": shown,
        "bands": _bands(runs, search, wanted.metrics),
        "target": summary_of(reached) if reached and len(reached) == len(runs) else None,
    }


def _bands(runs: Sequence[Run], search: str, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """What head, torso and tail labels contribute to each metric, averaged over the seeds."""
    found = [run.document["bands"][search] for run in runs if run.document and search in run.document.get("bands", {})]
    if not found:
        return {}
    return {
        band: {
            metric: statistics.fmean(bands[band][metric] for bands in found) for metric in metrics if metric in values
        }
        for band, values in found[0].items()
    }


def _group(group: Group, wanted: Wanted, differing: Mapping[str, Any]) -> dict[str, Any]:
    measures = {}
    for name in (name for name in wanted.measures if name != TARGET):
        values = [value for run in group.runs if (value := run.measure(name)) is not None]
        measures[name] = summary_of(values) if values else None
    return {
        "name": group.name,
        "column": group.column,
        "seeds": [run.seed for run in group.runs],
        "epochs": group.runs[0].config["epochs"],
        "steps": min(len(run.steps) for run in group.runs),
        "state": next((run.state for run in group.runs if run.state != "finished"), "finished"),
        "measures": measures,
        "curves": [_curve(run, wanted) for run in group.runs],
        "pool": _pool(group.runs),
        "differs": dict(differing),
    }


def _curve(run: Run, wanted: Wanted) -> list[dict[str, Any]]:
    """The evaluations of a run: of which queries, epoch, seconds of training, metrics of every search."""
    return [
        {
            "seed": run.seed,
            "split": record.get("split", "test"),
            "epoch": record["epoch"],
            "seconds": record.get("seconds"),
            "metrics": {
                search: {metric: row[metric] for metric in wanted.metrics if metric in row}
                for search, row in record["metrics"].items()
            },
        }
        for record in run.evaluations
    ]


def _pool(runs: Sequence[Run]) -> list[dict[str, float]]:
    """Queries, labels and positives per query of the pools, and the loss: means over each epoch and all seeds."""
    by_epoch: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        for step in run.steps:
            by_epoch[step["epoch"]].append(step)
    names = ("queries", "pool", "positives", "loss")
    return [
        {"epoch": epoch + 1, **{name: statistics.fmean(step[name] for step in steps) for name in names}}
        for epoch, steps in sorted(by_epoch.items())
    ]


def _tests(groups: Sequence[Group], wanted: Wanted) -> Iterable[dict[str, Any]]:
    """Every pair of rows of a column in every search and metric."""
    for search in wanted.searches:
        for column in dict.fromkeys(group.column for group in groups):
            beside = [group for group in groups if group.column == column]
            if len(_data_of(beside)) == 1:
                points = {group.name: _points(group, search, wanted.metrics) for group in beside}
                seeds = {tuple(run.seed for run in group.runs) for group in beside}
                for found in differences(points, same_seeds=len(seeds) == 1):
                    yield {"search": search, "column": column, **found}


def _tests_of_predictions(groups: Sequence[Group], wanted: Wanted) -> Iterable[dict[str, Any]]:
    """Every row in every search and metric against the predictions for its data."""
    for group, search, each in itertools.product(groups, wanted.searches, wanted.predictions):
        shared = [metric for metric in wanted.metrics if metric in each.metrics]
        if shared and set(_data_of([group])) == {_data_key(each.data, each.propensity)}:
            points = {group.name: _points(group, search, shared), each.name: [each.points.of(shared)]}
            for found in differences(points, same_seeds=False):
                yield {"search": search, "column": group.column, **found}


def _heads(groups: Sequence[Group], wanted: Wanted) -> Iterable[dict[str, Any]]:
    """Every pair of searches of a row in every metric."""
    for group in groups:
        points = {search: _points(group, search, wanted.metrics) for search in wanted.searches}
        for found in differences(points, same_seeds=True):
            yield {"name": group.name, "column": group.column, **found}


def _points(group: Group, search: str, metrics: Sequence[str]) -> list[Points]:
    found = [points for run in group.runs if (points := run.points(search)) is not None]
    return [points.of([metric for metric in metrics if metric in points.metrics]) for points in found]


def _differing(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For each group the config values (seed apart) that are not the same in all groups.

    Of an earlier stage, those that are not the same in the last.
    """
    flat = [_flatten(group.runs[0].config) if group.runs else {} for group in groups]
    flat = [{key: value for key, value in values.items() if not _as_in_last(key, values)} for values in flat]
    keys = dict.fromkeys(key for values in flat for key in values)
    differing = [key for key in keys if key != "seed" and len({repr(values.get(key)) for values in flat if values}) > 1]
    return [{key: values[key] for key in differing if key in values} for values in flat]


def _as_in_last(key: str, values: Mapping[str, Any]) -> bool:
    """Whether a key of an earlier stage has the value of the last one."""
    same = below(key, f"{STAGES}.{stage_of(key)}") if stage_of(key) else ""
    return bool(same) and values.get(same) == values[key]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
