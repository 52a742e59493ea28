"""MLflow: the config and the numbers of a run."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab.api import Tracker, option
from xmclab_trackers.records import installed, leaves, numbers

MLFLOW_METRICS = 500  # collected before they are sent; a request may have 1000
RUN = "mlflow.txt"  # in the run folder: the id of its MLflow run
MLFLOW_PARAMETERS = 100  # most that a request may have


@dataclass
class MlFlow(Tracker):
    """The config and the numbers of all records as a run of MLflow."""

    uri: str = option("", "URI of the MLflow server or store; empty: MLFLOW_TRACKING_URI, or MLflow's default")
    experiment: str = option("xmclab", "name of the experiment; created if it does not exist")

    def __post_init__(self) -> None:
        self._module = installed("mlflow", "mlflow")
        self._metrics: list[Any] = []
        self._step = 0
        self._status = "FAILED"

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._client = self._module.MlflowClient(tracking_uri=self.uri or None)
        known = self._client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self.experiment)
        known_run = folder / RUN  # of a run that is resumed
        if known_run.is_file():
            self._run = known_run.read_text(encoding="utf-8").strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        known_run.write_text(f"{self._run}\n", encoding="utf-8")
        parameters = [self._module.entities.Param(name, str(value)) for name, value in leaves(config)]
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
            self._status = {"": "FINISHED", "KeyboardInterrupt": "KILLED", "Stopped": "KILLED"}.get(
                record["error"], "FAILED"
            )

    def end(self) -> None:
        self._client.set_terminated(self._run, self._status)


def _mlflow_name(name: str) -> str:
    """MLflow accepts neither `@` nor `+` in a name."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))
