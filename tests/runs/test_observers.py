"""Hooks and trackers are told what happens in a run, cannot change it, and are left out once they raise."""

from __future__ import annotations

import doctest
import io
import json
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

from xmclab.host import hookspecs
from xmclab.host.resolve import resolve
from xmclab.errors import DivergedError, PluginError
from xmclab.host.registry import LISTENING, default_registry, load_registry
from xmclab.runs.observers import undisturbed
from xmclab.runs.run import RunResult, run

SMALL = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.clf=none", "head.de.dim=16", "sampler.batch_size=256"]
SMALL += ["epochs=2", "baseline=none", "evaluate.every=1", "miner=ann", "refresh_every=1"]
LISTENER = """
import json, pathlib, xmclab

def tell(run, event, **what):
    seen = sorted(path.name for path in run.folder.iterdir())
    with (run.folder / "told.jsonl").open("a") as file:
        file.write(json.dumps({"hook": event, "seen": seen, **what}) + "\\n")

@xmclab.hookimpl
def xmclab_on_run_start(run):
    tell(run, "run_start", config=run.config, steps=run.steps)

@xmclab.hookimpl
def xmclab_on_step(run, record):
    tell(run, "step", record=record)

@xmclab.hookimpl
def xmclab_on_refresh(run, record):
    tell(run, "refresh", record=record)

@xmclab.hookimpl
def xmclab_on_eval(run, epoch, metrics):
    tell(run, "eval", epoch=epoch, metrics=metrics)

@xmclab.hookimpl
def xmclab_on_run_end(run, outcome):
    tell(run, "run_end", error=outcome.error, message=outcome.message, metrics=outcome.metrics)
"""
TRACKER = """
from dataclasses import dataclass
import xmclab
from xmclab.api import Tracker

@dataclass
class Mine(Tracker):
    def start(self, folder, config):
        START
    def log(self, record):
        LOG
    def end(self):
        END

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("tracker", "mine", Mine)]
"""


def hook(name: str, body: str) -> str:
    return f"import random, xmclab, numpy, torch\n@xmclab.hookimpl\ndef {name}:\n    {body}\n"


def tracker(**bodies: str) -> str:
    source = TRACKER
    for method in ("start", "log", "end"):
        source = source.replace(method.upper(), bodies.get(method, "pass"))
    return source


def train(folder: Path, *sources: str, overrides: tuple[str, ...] = ()) -> tuple[RunResult, str]:
    """A run with plugins of these sources, and what it says on the way."""
    folder.mkdir()
    files = [folder / f"plugin_{number}.py" for number in range(len(sources))]
    for file, source in zip(files, sources, strict=True):
        file.write_text(source)
    said = io.StringIO()
    config = resolve([*SMALL, *(f"plugin={file}" for file in files), *overrides], default_registry())
    return run(config, folder / "run", Console(file=said, width=500)), said.getvalue()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in lines(folder / "metrics.jsonl") if record["event"] == event]


def warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("warning: ")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody listens to."""
    return train(tmp_path_factory.mktemp("plain") / "out")[0].folder


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("heard") / "out", LISTENER)[0].folder


def told(folder: Path, hook: str) -> list[dict[str, Any]]:
    return [call for call in lines(folder / "told.jsonl") if call["hook"] == hook]


def assert_same_training(folder: Path, plain: Path) -> None:
    for event in ("step", "refresh", "eval"):
        ours, theirs = events(folder, event), events(plain, event)
        assert [{**r, "seconds": 0} for r in ours] == [{**r, "seconds": 0} for r in theirs]
    assert (folder / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_xmclab_on_run_start_comes_first_and_has_the_config(heard: Path) -> None:
    first = lines(heard / "told.jsonl")[0]
    assert first["hook"] == "run_start"
    assert first["config"] == yaml.safe_load((heard / "config.yaml").read_text())
    assert {"config.yaml", "environment.json"} <= set(first["seen"])
    assert first["steps"] == len(events(heard, "step"))


def test_xmclab_on_step_has_the_record_of_every_step(heard: Path) -> None:
    assert [call["record"] for call in told(heard, "step")] == events(heard, "step")
    assert all(math.isfinite(call["record"]["loss"]) for call in told(heard, "step"))


def test_xmclab_on_refresh_has_what_the_miner_reports(heard: Path) -> None:
    assert [call["record"] for call in told(heard, "refresh")] == events(heard, "refresh")
    assert [call["record"]["recall"] for call in told(heard, "refresh")] == [1.0]


def test_xmclab_on_eval_has_the_metrics_of_every_evaluation(heard: Path) -> None:
    calls = told(heard, "eval")
    assert [call["epoch"] for call in calls] == [1, 2]
    assert [call["metrics"] for call in calls] == [record["metrics"] for record in events(heard, "eval")]


def test_xmclab_on_run_end_comes_last_with_everything_stored(heard: Path) -> None:
    last = lines(heard / "told.jsonl")[-1]
    assert (last["hook"], last["error"], last["message"]) == ("run_end", "", "")
    assert {"model.safetensors", "labels.jsonl", "result.json"} <= set(last["seen"])
    assert last["metrics"] == json.loads((heard / "result.json").read_text())["metrics"]


def test_xmclab_on_run_end_is_told_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmclab.training.optim.Optimizers.clip", lambda self: torch.tensor(math.nan))
    with pytest.raises(DivergedError):
        train(tmp_path / "out", LISTENER)
    [end] = told(tmp_path / "out" / "run", "run_end")
    assert end["error"] == "DivergedError"
    assert end["message"].startswith("step 0: gradient norm not finite")
    assert "failure" in end["seen"]
    assert end["metrics"] == {}
    assert [record["error"] for record in events(tmp_path / "out" / "run", "end")] == ["DivergedError"]


def test_an_interrupt_in_a_hook_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", hook("xmclab_on_step(record)", "raise KeyboardInterrupt"), LISTENER)
    assert [call["error"] for call in told(tmp_path / "out" / "run", "run_end")] == ["KeyboardInterrupt"]
    assert len(events(tmp_path / "out" / "run", "step")) == 1


@pytest.mark.parametrize("name", sorted(name for name in vars(hookspecs) if name.startswith(LISTENING)))
def test_the_example_of_a_hook_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = doctest.DocTestParser().get_examples(getattr(hookspecs, name).__doc__)
    _, said = train(tmp_path / "out", "".join(example.source for example in examples))
    assert warnings(said) == []
    assert capsys.readouterr().out != ""


BAD = "raise RuntimeError('out of order')"
NOSY = {
    "draws random numbers": (hook("xmclab_on_step()", "random.random(), numpy.random.rand(), torch.rand(3)"), 0),
    "seeds generators": (hook("xmclab_on_step()", "random.seed(0), numpy.random.seed(0), torch.manual_seed(0)"), 0),
    "changes its record": (hook("xmclab_on_step(record)", "record['terms'].clear(), record.update(loss=0)"), 0),
    "changes the config": (hook("xmclab_on_run_start(run)", "run.config['pool'].clear()"), 0),
    "changes the metrics": (hook("xmclab_on_eval(metrics)", "[row.clear() for row in metrics.values()]"), 0),
    "switches gradients off": (hook("xmclab_on_step()", "torch.set_grad_enabled(False)"), 0),
    "returns something": (hook("xmclab_on_step()", "return 'stop'"), 0),
    "raises at the start": (hook("xmclab_on_run_start()", BAD), 1),
    "raises in a step": (hook("xmclab_on_step()", BAD), 1),
    "raises in a refresh": (hook("xmclab_on_refresh()", BAD), 1),
    "raises in an evaluation": (hook("xmclab_on_eval()", BAD), 1),
    "raises at the end": (hook("xmclab_on_run_end()", BAD), 1),
    "exits": (hook("xmclab_on_step()", "raise SystemExit(3)"), 1),
}


@pytest.mark.parametrize(("source", "warned"), NOSY.values(), ids=NOSY)
def test_a_hook_cannot_change_a_run(source: str, warned: int, tmp_path: Path, plain: Path) -> None:
    result, said = train(tmp_path / "out", source, LISTENER)
    assert_same_training(result.folder, plain)
    assert len(warnings(said)) == warned
    assert result.metrics == events(plain, "eval")[-1]["metrics"]
    assert told(result.folder, "run_start")[0]["config"] == yaml.safe_load((plain / "config.yaml").read_text())
    assert [call["record"] for call in told(result.folder, "step")] == events(result.folder, "step")


def test_a_hook_that_raises_is_warned_of_once_and_switched_off(tmp_path: Path) -> None:
    counting = hook("xmclab_on_step(run, record)", "open(run.folder / 'calls', 'a').write('x'); 1 / record['step']")
    counting += "@xmclab.hookimpl\ndef xmclab_on_run_end(run):\n    (run.folder / 'ended').touch()\n"
    result, said = train(tmp_path / "out", counting, LISTENER)
    [warning] = warnings(said)
    assert "plugin_0 (plugin " in warning
    assert "ZeroDivisionError: division by zero, at 'step'; switched off for the rest of this run" in warning
    assert (result.folder / "calls").read_text() == "x"
    assert not (result.folder / "ended").exists()
    assert len(told(result.folder, "step")) == len(events(result.folder, "step")) > 1


def test_the_next_run_of_a_process_calls_it_again(tmp_path: Path) -> None:
    source = hook("xmclab_on_run_start()", BAD)
    assert [len(warnings(train(tmp_path / name, source)[1])) for name in ("a", "b")] == [1, 1]


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
    result, said = train(tmp_path / "out", TRACKERS[name], overrides=("tracker=mine",))
    assert_same_training(result.folder, plain)
    if name == "change":
        assert warnings(said) == []
    else:
        [warning] = warnings(said)
        assert warning.startswith("warning: tracker mine: ")
        assert "out of order" in warning or name == "exit"


@pytest.mark.parametrize(
    "bodies",
    [{"start": BAD}, {"log": BAD}, {"log": "if record['event'] == 'end': " + BAD}, {}],
    ids=["start", "step", "end", "while it ends"],
)
def test_a_tracker_that_raises_is_ended_once(bodies: dict[str, str], tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    source = tracker(**bodies, end=f"open({str(ended)!r}, 'a').write('x'); {BAD}")
    _, said = train(tmp_path / "out", source, overrides=("tracker=mine",))
    assert ended.read_text() == "x"
    assert len(warnings(said)) == 1


@pytest.mark.parametrize(
    ("source", "overrides"), [(hook("xmclab_on_step()", BAD), ()), (tracker(log=BAD), ("tracker=mine",))]
)
def test_strict_makes_it_an_error(
    source: str, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCLAB_STRICT", "1")
    with pytest.raises(PluginError, match="RuntimeError: out of order, at 'step'") as caught:
        train(tmp_path / "out", source, LISTENER, overrides=overrides)
    assert caught.value.exit_code == 4
    assert [call["error"] for call in told(tmp_path / "out" / "run", "run_end")] == ["PluginError"]


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


def test_installed_plugins_listen_too_and_can_be_limited(install: Callable[..., str]) -> None:
    install(hook("xmclab_on_step()", "pass"))
    assert [str(listener.origin) for listener in load_registry({}).listeners] == ["other-dist 2.5 (plugin other)"]
    assert load_registry({"XMCLAB_PLUGINS": "xmclab"}).listeners == []
