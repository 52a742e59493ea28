"""Trackers: what each keeps of a run, and several of them at once."""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from xmclab.host.config import Config
from xmclab.host.resolve import resolve
from xmclab.errors import ConfigError, PluginError
from xmclab.host.registry import default_registry
from xmclab.runs.observers import trackers
from xmclab.runs.trackers import JsonLines, TensorBoard, numbers

ROOT = Path(__file__).parents[2]
STEP = {"event": "step", "epoch": 0, "step": 3, "last_of_epoch": True, "loss": 0.5, "terms": {"de/ds/q2l": 0.25}}
EVAL = {"event": "eval", "epoch": 1, "metrics": {"de+clf": {"P@1": 12.5}}}
END = {"event": "end", "error": "", "message": "", "seconds": 2.0}
MORE = """
from dataclasses import dataclass
import xmclab
from xmclab.api import Tracker

@dataclass
class One(Tracker):
    level: int = xmclab.option(1, "of one")
    def log(self, record): ...

@dataclass
class Two(One):
    colour: str = xmclab.option("red", "of two")

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("tracker", "one", One), xmclab.part("tracker", "two", Two)]
"""


@pytest.fixture
def choose(tmp_path: Path) -> Callable[..., Config]:
    file = tmp_path / "more.py"
    file.write_text(MORE)
    return lambda *overrides: resolve([f"plugin={file}", *overrides], default_registry())


@pytest.mark.parametrize("name", default_registry().names("tracker"))
def test_every_tracker_has_a_test_and_a_section(name: str) -> None:
    assert f"\ndef test_{name}_" in Path(__file__).read_text(encoding="utf-8")
    plugins = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert re.search(rf"^### Tracker `{name}`$", plugins, re.MULTILINE)


def test_numbers_have_the_path_to_them_as_a_name() -> None:
    assert dict(numbers(STEP)) == {"step/epoch": 0, "step/loss": 0.5, "step/terms/de/ds/q2l": 0.25}
    assert dict(numbers(EVAL)) == {"eval/epoch": 1, "eval/metrics/de+clf/P@1": 12.5}
    assert dict(numbers(END)) == {"end/seconds": 2.0}


def test_jsonl_writes_a_line_per_record_at_once(tmp_path: Path) -> None:
    tracker = JsonLines()
    tracker.start(tmp_path, {})
    for number, record in enumerate([STEP, EVAL], start=1):
        tracker.log(record)
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == number
    tracker.end()
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()] == [STEP, EVAL]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may have more than 1000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("full_disk")
def test_jsonl_keeps_whole_lines_when_the_disk_is_full(tmp_path: Path) -> None:
    tracker = JsonLines()
    tracker.start(tmp_path, {})
    room = 1000 // (len(json.dumps(STEP)) + 1)
    for _ in range(room):
        tracker.log(STEP)
    with pytest.raises(OSError, match="no room for another line"):
        tracker.log(STEP)
    kept = (tmp_path / "metrics.jsonl").read_text()
    assert kept.endswith("\n")
    assert [json.loads(line) for line in kept.splitlines()] == [STEP] * room


def test_tensorboard_writes_scalars_by_step(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard()
    tracker.start(tmp_path, {})
    for record in (STEP, EVAL, END):
        tracker.log(record)
    tracker.end()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found == {name: [(3, value)] for record in (STEP, EVAL, END) for name, value in numbers(record)}


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


@pytest.mark.parametrize(("error", "status"), [("DivergedError", "FAILED"), ("KeyboardInterrupt", "KILLED")])
def test_mlflow_knows_how_a_run_ended(tmp_path: Path, mlflow: FakeMlflow, error: str, status: str) -> None:
    mlflow_run(tmp_path, {**END, "error": error})
    assert mlflow.status == status


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_said_before_training(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginError, match=rf'tracker {name}: .*pip install "xmclab\[{name}\]"') as caught:
        resolve([f"tracker={name}"], default_registry())
    assert caught.value.exit_code == 4


def test_several_trackers_and_the_options_of_each(choose: Callable[..., Config]) -> None:
    config = choose("tracker=one + two", "tracker.level=5", "tracker.colour=blue")
    one, two = config.make_all("tracker").values()
    assert (one.level, two.level, two.colour) == (5, 5, "blue")
    assert config.choice("tracker") == "one+two"
    again = {"tracker": {"name": "one+two", "level": 5, "colour": "blue"}}
    assert {"tracker": config.to_dict()["tracker"]} == again


def test_a_stored_choice_of_several_resolves_again(choose: Callable[..., Config], tmp_path: Path) -> None:
    config = choose("tracker=two+jsonl", "tracker.colour=blue")
    file = tmp_path / "stored.yaml"
    file.write_text(yaml.safe_dump(config.to_dict()))
    assert choose(f"recipe={file}").parts == config.parts


def test_what_is_wrong_with_one_of_several_is_said(choose: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"unknown tracker 'jsonll'.*did you mean 'jsonl'"):
        choose("tracker=one+jsonll")
    with pytest.raises(ConfigError, match=r"tracker\.colour: unknown key"):
        choose("tracker=one+jsonl", "tracker.colour=blue")
    with pytest.raises(ConfigError, match=r"unknown sampler 'random\+cluster'"):
        choose("sampler=random+cluster")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("none", []),
        ("jsonl", ["jsonl"]),
        ("one", ["jsonl", "one"]),
        ("one+jsonl", ["one", "jsonl"]),
        ("one+one", ["jsonl", "one"]),
    ],
)
def test_jsonl_stays_beside_the_others(choose: Callable[..., Config], choice: str, names: list[str]) -> None:
    assert list(trackers(choose(f"tracker={choice}"))) == [f"tracker {name}" for name in names]
