"""Trackers get every record of a run, cannot change it, and are disabled once they raise."""

from __future__ import annotations

import io
import json
import logging
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from xmclab.errors import DivergedError, PluginError
from xmclab.host.registry import default_registry, load_registry
from xmclab.host.resolver import resolve
from xmclab.runs.observers import undisturbed
from xmclab.runs.run import RunResult, run
from xmclab.system import messages

SMALL = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.clf=none", "head.de.dim=16", "sampler.batch_size=256"]
SMALL += ["epochs=2", "baseline=none", "evaluate.every=1", "miner=ann", "refresh_every=1"]
LISTENER = """
import json
from dataclasses import dataclass
import xmclab
from xmclab.api import Tracker

@dataclass
class Listener(Tracker):
    def tell(self, **what):
        seen = sorted(path.name for path in self.folder.iterdir())
        with (self.folder / "told.jsonl").open("a") as file:
            file.write(json.dumps({"seen": seen, **what}) + "\\n")

    def start(self, folder, config):
        self.folder = folder
        self.tell(event="config", config=config)

    def log(self, record):
        self.tell(**record)

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("tracker", "listener", Listener, always=True)]
"""
TRACKER = """
import random, numpy, torch
from dataclasses import dataclass
import xmclab
from xmclab.api import Tracker

@dataclass
class Mine(Tracker):
    def start(self, folder, config):
        self.folder = folder
        START
    def log(self, record):
        LOG
    def end(self):
        END

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("tracker", "mine", Mine, always=ALWAYS)]
"""


def tracker(always: bool = False, **bodies: str) -> str:
    source = TRACKER.replace("ALWAYS", str(always))
    for method in ("start", "log", "end"):
        source = source.replace(method.upper(), bodies.get(method, "pass"))
    return source


def at(event: str, body: str) -> str:
    """A tracker of every run that does this at every such event."""
    return tracker(always=True, log=f"if record['event'] == {event!r}: {body}")


def train(folder: Path, *sources: str, overrides: tuple[str, ...] = ()) -> tuple[RunResult, list[str]]:
    """A run with plugins of these sources, and what it warns of on the way."""
    folder.mkdir()
    files = [folder / f"plugin_{number}.py" for number in range(len(sources))]
    for file, source in zip(files, sources, strict=True):
        file.write_text(source)
    config = resolve([*SMALL, *(f"plugin={file}" for file in files), *overrides], default_registry())
    with messages.kept() as said:
        result = run(config, folder / "run", Console(file=io.StringIO()))
    return result, [message.getMessage() for message in said if message.levelno == logging.WARNING]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in lines(folder / "metrics.jsonl") if record["event"] == event]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody listens to."""
    return train(tmp_path_factory.mktemp("plain") / "out")[0].folder


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("heard") / "out", LISTENER)[0].folder


def told(folder: Path, event: str) -> list[dict[str, Any]]:
    calls = [call for call in lines(folder / "told.jsonl") if call["event"] == event]
    return [{key: value for key, value in call.items() if key != "seen"} for call in calls]


def assert_same_training(folder: Path, plain: Path) -> None:
    for event in ("step", "refresh", "eval"):
        ours, theirs = events(folder, event), events(plain, event)
        assert [{**r, "seconds": 0} for r in ours] == [{**r, "seconds": 0} for r in theirs]
    assert (folder / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_a_tracker_starts_with_the_config_and_the_number_of_steps(heard: Path) -> None:
    first, second = lines(heard / "told.jsonl")[:2]
    assert first["config"] == yaml.safe_load((heard / "config.yaml").read_text())
    assert {"config.yaml", "environment.json"} <= set(first["seen"])
    assert (second["event"], second["steps"]) == ("start", len(events(heard, "step")))


@pytest.mark.parametrize("event", ["start", "step", "refresh", "eval", "baselines"])
def test_a_tracker_of_every_run_gets_every_record(event: str, heard: Path) -> None:
    assert told(heard, event) == events(heard, event) != []


def test_records_say_what_happened(heard: Path) -> None:
    assert all(math.isfinite(record["loss"]) for record in events(heard, "step"))
    assert [record["recall"] for record in events(heard, "refresh")] == [1.0]
    assert [record["epoch"] for record in events(heard, "eval")] == [1, 2]
    assert events(heard, "eval")[-1]["metrics"] == json.loads((heard / "result.json").read_text())["metrics"]


def test_the_end_comes_last_with_everything_stored(heard: Path) -> None:
    last = lines(heard / "told.jsonl")[-1]
    assert (last["event"], last["error"], last["message"]) == ("end", "", "")
    assert {"model.safetensors", "labels.jsonl", "result.json"} <= set(last["seen"])


def test_a_tracker_learns_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmclab.training.optim.Optimizers.clip", lambda self: torch.tensor(math.nan))
    with pytest.raises(DivergedError):
        train(tmp_path / "out", LISTENER)
    end = lines(tmp_path / "out" / "run" / "told.jsonl")[-1]
    assert (end["event"], end["error"]) == ("end", "DivergedError")
    assert end["message"].startswith("step 0: gradient norm not finite")
    assert "failure" in end["seen"]
    assert [record["error"] for record in events(tmp_path / "out" / "run", "end")] == ["DivergedError"]


def test_an_interrupt_in_a_tracker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", at("step", "raise KeyboardInterrupt"), LISTENER)
    assert [call["error"] for call in told(tmp_path / "out" / "run", "end")] == ["KeyboardInterrupt"]
    assert len(events(tmp_path / "out" / "run", "step")) == 1


def test_a_tracker_of_every_run_that_is_chosen_too_is_there_once(tmp_path: Path) -> None:
    counting = tracker(always=True, log="open(self.folder / 'calls', 'a').write(record['event'] + '\\n')")
    result, _ = train(tmp_path / "out", counting, overrides=("tracker=mine",))
    assert (result.folder / "calls").read_text().split().count("end") == 1


BAD = "raise RuntimeError('out of order')"
NOSY = {
    "draws random numbers": (at("step", "random.random(), numpy.random.rand(), torch.rand(3)"), 0),
    "seeds generators": (at("step", "random.seed(0), numpy.random.seed(0), torch.manual_seed(0)"), 0),
    "changes its record": (at("step", "record['terms'].clear(), record.update(loss=0)"), 0),
    "changes the config": (tracker(always=True, start="config['pool'].clear()"), 0),
    "changes the metrics": (at("eval", "[row.clear() for row in record['metrics'].values()]"), 0),
    "switches gradients off": (at("step", "torch.set_grad_enabled(False)"), 0),
    "returns something": (at("step", "return 'stop'"), 0),
    "raises at the start": (tracker(always=True, start=BAD), 1),
    "raises in a step": (at("step", BAD), 1),
    "raises in a refresh": (at("refresh", BAD), 1),
    "raises in an evaluation": (at("eval", BAD), 1),
    "raises at the end": (at("end", BAD), 1),
    "exits": (at("step", "raise SystemExit(3)"), 1),
}


@pytest.mark.parametrize(("source", "warned"), NOSY.values(), ids=NOSY)
def test_a_tracker_of_every_run_cannot_change_it(source: str, warned: int, tmp_path: Path, plain: Path) -> None:
    result, warnings = train(tmp_path / "out", source, LISTENER)
    assert_same_training(result.folder, plain)
    assert len(warnings) == warned
    assert result.metrics == events(plain, "eval")[-1]["metrics"]
    assert told(result.folder, "config")[0]["config"] == yaml.safe_load((plain / "config.yaml").read_text())
    assert told(result.folder, "step") == events(result.folder, "step")


def test_a_tracker_that_raises_is_warned_of_once_and_switched_off(tmp_path: Path) -> None:
    counting = at("step", "open(self.folder / 'calls', 'a').write('x'); 1 / record['step']")
    result, warnings = train(tmp_path / "out", counting, LISTENER)
    assert warnings == [
        "tracker mine: ZeroDivisionError: division by zero, at 'step'; disabled for the rest of this run"
    ]
    assert (result.folder / "calls").read_text() == "x"
    assert len(told(result.folder, "step")) == len(events(result.folder, "step")) > 1


def test_the_next_run_of_a_process_calls_it_again(tmp_path: Path) -> None:
    source = tracker(always=True, start=BAD)
    assert [len(train(tmp_path / name, source)[1]) for name in ("a", "b")] == [1, 1]


TRACKERS = {
    "start": tracker(start=BAD),
    "step": tracker(log=BAD),
    "eval": tracker(log="if record['event'] == 'eval': " + BAD),
    "end": tracker(end=BAD),
    "exit": tracker(log="raise SystemExit"),
    "change": tracker(log="record.clear()"),
}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_cannot_change_a_run(name: str, tmp_path: Path, plain: Path) -> None:
    result, warnings = train(tmp_path / "out", TRACKERS[name], overrides=("tracker=mine",))
    assert_same_training(result.folder, plain)
    if name == "change":
        assert warnings == []
    else:
        [warning] = warnings
        assert warning.startswith("tracker mine: ")
        assert "out of order" in warning or name == "exit"


@pytest.mark.parametrize(
    "bodies",
    [{"start": BAD}, {"log": BAD}, {"log": "if record['event'] == 'end': " + BAD}, {}],
    ids=["start", "step", "end", "while it ends"],
)
def test_a_tracker_that_raises_is_ended_once(bodies: dict[str, str], tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    source = tracker(**bodies, end=f"open({str(ended)!r}, 'a').write('x'); {BAD}")
    _, warnings = train(tmp_path / "out", source, overrides=("tracker=mine",))
    assert ended.read_text() == "x"
    assert len(warnings) == 1


@pytest.mark.parametrize(("source", "overrides"), [(at("step", BAD), ()), (at("step", BAD), ("tracker=mine",))])
def test_strict_makes_it_an_error(
    source: str, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCLAB_STRICT", "1")
    with pytest.raises(PluginError, match="RuntimeError: out of order, at 'step'") as caught:
        train(tmp_path / "out", source, LISTENER, overrides=overrides)
    assert caught.value.exit_code == 4
    assert [call["error"] for call in told(tmp_path / "out" / "run", "end")] == ["PluginError"]


def test_random_generators_go_on_as_if_nobody_had_drawn() -> None:
    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002

    def seed() -> None:
        random.seed(7), np.random.seed(7), torch.manual_seed(7)  # noqa: NPY002

    seed()
    expected = [draws(), draws()]
    seed()
    found = [draws()]
    with undisturbed():
        seed()
        draws()
    found.append(draws())
    assert found == expected


def test_installed_plugins_have_trackers_of_every_run_and_can_be_limited(install: Callable[..., str]) -> None:
    install(at("step", "pass"))
    assert load_registry({}).always("tracker") == ["jsonl", "mine"]
    assert load_registry({"XMCLAB_PLUGINS": "xmclab"}).always("tracker") == ["jsonl"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [("'no_such_module:Tracker'", "ModuleNotFoundError: No module named 'no_such_module'"), ("Mine", "TypeError")],
    ids=["missing", "needs an option"],
)
def test_a_tracker_of_every_run_that_cannot_be_made_costs_a_warning(
    target: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tracker(always=True).replace('"mine", Mine,', f'"mine", {target},')
    source = source.replace("class Mine(Tracker):", "class Mine(Tracker):\n    where: str")
    result, [warning] = train(tmp_path / "out", source)
    assert warning.startswith("tracker mine: ")
    assert reason in warning
    assert warning.endswith("; not used in this run")
    assert events(result.folder, "step")
    monkeypatch.setenv("XMCLAB_STRICT", "1")
    with pytest.raises((PluginError, TypeError)):
        train(tmp_path / "strict", source)


def test_two_trackers_of_every_run_with_one_name_both_watch(install: Callable[..., str]) -> None:
    install(at("step", "pass"))
    install(at("step", "pass"), "second-dist", "0.1", "second")
    assert load_registry({}).always("tracker") == ["jsonl", "other_dist.mine", "second_dist.mine"]
