"""The config and the numbers of a run in MLflow, which a stand-in plays."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve

STEP = {"event": "step", "epoch": 0, "step": 3, "last_of_epoch": True, "loss": 0.5, "terms": {"de/ds/q2l": 0.25}}
EVAL = {"event": "eval", "epoch": 1, "metrics": {"de+clf": {"P@1": 12.5}}}
END = {"event": "end", "error": "", "message": "", "seconds": 2.0}


class FakeMlflow(ModuleType):
    """The few calls of MLflow that the tracker makes."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.entities = SimpleNamespace(Param=lambda *a: a, Metric=lambda *a: a)
        self.experiments: list[str] = []
        self.params: list[tuple[str, str]] = []
        self.metrics: dict[str, tuple[float, int]] = {}
        self.batches: list[int] = []
        self.status = ""
        self.resumed: list[tuple[str, str]] = []
        self.uri: str | None = "unset"

    def MlflowClient(self, tracking_uri: str | None) -> FakeMlflow:
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return name

    def create_run(self, experiment_id: str, run_name: str) -> SimpleNamespace:
        assert experiment_id in self.experiments
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        assert len(metrics) <= 1000
        self.params += params
        self.batches.append(len(metrics))
        for name, value, _, step in metrics:
            assert re.fullmatch(r"[\w\-. :/]+", name)
            self.metrics[name] = value, step

    def update_run(self, run_id: str, status: str) -> None:
        self.resumed.append((run_id, status))

    def set_terminated(self, run_id: str, status: str) -> None:
        self.status = status


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


def mlflow_run(folder: Path, end: dict[str, Any]) -> None:
    tracker = resolve(["tracker=mlflow", "tracker.experiment=mine"], default_registry()).make("tracker")
    tracker.start(folder, {"pool": {"beta": 3}, **{f"key{n}": n for n in range(150)}})
    for number in range(400):
        tracker.log({**STEP, "step": number})
    tracker.log(EVAL)
    tracker.log(end)
    tracker.end()


def test_mlflow_gets_the_config_and_the_numbers(tmp_path: Path, mlflow: FakeMlflow) -> None:
    for _ in range(2):
        mlflow_run(tmp_path, END)
    assert (mlflow.uri, mlflow.experiments, mlflow.status) == (None, ["mine"], "FINISHED")
    assert ("pool.beta", "3") in mlflow.params
    assert mlflow.metrics["step/loss"] == (0.5, 399)
    assert mlflow.metrics["eval/metrics/de_clf/P_at_1"] == (12.5, 399)
    assert sum(size > 0 for size in mlflow.batches) == 2 * 4  # requests, for 402 records each
    assert mlflow.resumed == [(tmp_path.name, "RUNNING")]  # the second is the same run, continued
    assert mlflow.params.count(("pool.beta", "3")) == 1


@pytest.mark.parametrize(("error", "status"), [("DivergedError", "FAILED"), ("KeyboardInterrupt", "KILLED")])
def test_mlflow_knows_how_a_run_ended(tmp_path: Path, mlflow: FakeMlflow, error: str, status: str) -> None:
    mlflow_run(tmp_path, {**END, "error": error})
    assert mlflow.status == status
