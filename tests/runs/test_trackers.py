"""Trackers: what each keeps of a run, and several of them at once."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from xmclab.errors import ConfigError
from xmclab.host.config import Config
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.observers import trackers
from xmclab.runs.trackers import JsonLines

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
    tests = [*ROOT.glob("tests/**/test_trackers.py"), *ROOT.glob("tests/plugins/xmclab_trackers/*.py")]
    assert any(f"\ndef test_{name}_" in file.read_text(encoding="utf-8") for file in tests)
    plugins = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert re.search(rf"^### Tracker `{name}`$", plugins, re.MULTILINE)


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
        ("none", ["jsonl"]),
        ("jsonl", ["jsonl"]),
        ("one", ["jsonl", "one"]),
        ("one+jsonl", ["one", "jsonl"]),
        ("one+one", ["jsonl", "one"]),
    ],
)
def test_jsonl_stays_beside_the_others(choose: Callable[..., Config], choice: str, names: list[str]) -> None:
    assert list(trackers(choose(f"tracker={choice}"))) == [f"tracker {name}" for name in names]
