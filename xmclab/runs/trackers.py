"""Where the records of a run go."""

from __future__ import annotations

import errno
import importlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab.api import Tracker, option
from xmclab.errors import PluginError, Problem

MLFLOW_METRICS = 500  # collected before they are sent; a request may have 1000
MLFLOW_PARAMETERS = 100  # that a request may have


@dataclass
class JsonLines(Tracker):
    """A line of JSON per record, in `metrics.jsonl` of the run folder. Every run has it."""

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._file = (folder / "metrics.jsonl").open("wb", buffering=0)

    def log(self, record: Mapping[str, Any]) -> None:
        line = (json.dumps(record) + "\n").encode()
        start = self._file.tell()
        if self._file.write(line) < len(line):  # the disk is full: better no line than half of one
            self._file.truncate(start)
            raise OSError(errno.ENOSPC, "no room for another line", self._file.name)

    def end(self) -> None:
        self._file.close()


@dataclass
class TensorBoard(Tracker):
    """The numbers of all records as TensorBoard scalars, in `tensorboard/` of the run folder."""

    def __post_init__(self) -> None:
        self._module = _installed("torch.utils.tensorboard", "tensorboard")
        self._step = 0

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._writer = self._module.SummaryWriter(str(folder / "tensorboard"))

    def log(self, record: Mapping[str, Any]) -> None:
        self._step = record.get("step", self._step)
        for name, value in numbers(record):
            self._writer.add_scalar(name, value, self._step)

    def end(self) -> None:
        self._writer.close()


@dataclass
class MlFlow(Tracker):
    """The config and the numbers of all records as a run of MLflow."""

    uri: str = option("", "of MLflow's server or store; empty: MLFLOW_TRACKING_URI, or MLflow's own choice")
    experiment: str = option("xmclab", "that the run belongs to; made if there is none of this name")

    def __post_init__(self) -> None:
        self._module = _installed("mlflow", "mlflow")
        self._metrics: list[Any] = []
        self._step = 0
        self._status = "FAILED"

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._client = self._module.MlflowClient(tracking_uri=self.uri or None)
        known = self._client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self.experiment)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        parameters = [self._module.entities.Param(name, str(value)) for name, value in _leaves(config)]
        for start in range(0, len(parameters), MLFLOW_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[start : start + MLFLOW_PARAMETERS])

    def log(self, record: Mapping[str, Any]) -> None:
        self._step = record.get("step", self._step)
        now = int(time.time() * 1000)
        for name, value in numbers(record):
            self._metrics.append(self._module.entities.Metric(_mlflow_name(name), value, now, self._step))
        if record["event"] != "step" or len(self._metrics) >= MLFLOW_METRICS:
            self._client.log_batch(self._run, metrics=self._metrics)
            self._metrics = []
        if record["event"] == "end":
            self._status = {"": "FINISHED", "KeyboardInterrupt": "KILLED"}.get(record["error"], "FAILED")

    def end(self) -> None:
        self._client.set_terminated(self._run, self._status)


def numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a record under names such as `step/loss`, `step/terms/de/ds/q2l`, `eval/metrics/de/P@1`."""
    for name, value in _leaves(record, "/"):
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            yield f"{record['event']}/{name}", value


def _leaves(tree: Mapping[str, Any], separator: str = ".") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}{separator}{below}", leaf) for below, leaf in _leaves(value, separator))
        else:
            yield name, value


def _mlflow_name(name: str) -> str:
    """MLflow takes no `@` and no `+` in a name."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def _installed(module: str, extra: str) -> Any:
    """A module that not every installation has, or an error with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f'pip install "xmclab[{extra}]"'
        raise PluginError(Problem(f"tracker {extra}", f"{module} cannot be imported: {error}", hint)) from error
