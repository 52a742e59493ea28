"""Every example runs and does what it says."""

from __future__ import annotations

import importlib
import runpy
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from xmclab.config import resolve
from xmclab.hookspecs import PartRef
from xmclab.plugins import default_registry
from xmclab.train.run import run

EXAMPLES = Path(__file__).parents[1] / "examples"
PLUGIN = EXAMPLES / "plugin_minimal"
COVERED = {"own_training_loop.py", "plugin_minimal"}


def test_every_example_is_covered_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == COVERED


def test_own_training_loop_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_training_loop.py"), run_name="__main__")
    name, percent, _ = capsys.readouterr().out.split()
    assert name == "P@1"
    assert float(percent) > 80


def test_the_minimal_plugin_trains_as_a_file(tmp_path: Path) -> None:
    overrides = ["recipe=depsl", "data=tiny", "epochs=1", "evaluate.baselines=off", "encoder.chars_from=0"]
    margin = [f"plugin={PLUGIN / 'xmclab_margin.py'}", "loss.de=margin", "loss.de.margin.margin=0.5"]
    config = resolve([*overrides, *margin], default_registry())
    result = run(config, config.registry, tmp_path / "run", Console(quiet=True))
    assert list(result.metrics) == ["de"]
    assert '"de/margin/q2l"' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_the_minimal_plugin_has_an_entry_point_that_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())
    modules = project["project"]["entry-points"]["xmclab"].values()
    assert list(modules) == project["tool"]["setuptools"]["py-modules"]
    monkeypatch.syspath_prepend(PLUGIN)
    parts = [ref for module in modules for ref in importlib.import_module(module).xmclab_parts()]
    assert [(ref.kind, ref.name) for ref in parts] == [("loss", "margin")]
    assert all(isinstance(ref, PartRef) for ref in parts)
