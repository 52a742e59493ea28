"""Plugins, models, disk and variables around a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Of

import pytest

from xmclab.host.registry import load_registry
from xmclab_doctor import surroundings as module
from xmclab_doctor.facts import Machine
from xmclab_doctor.findings import Finding
from xmclab_doctor.surroundings import surroundings


def looked(tmp_path: Path, environment: dict[str, str] | None = None) -> dict[str, Finding]:
    machine = Machine(tmp_path, [], {"HOME": str(tmp_path), **(environment or {})})
    return {each.name: each for each in surroundings(machine, load_registry(os.environ), tmp_path / "runs")}


def test_a_plugin_that_fails_to_load_is_a_problem(install: Callable[..., str], tmp_path: Path) -> None:
    assert looked(tmp_path)["plugins"].status == "ok"
    install("raise RuntimeError('out of order')", "broken-dist", "0.9", "broken")
    found = looked(tmp_path)["plugins"]
    assert found.status == "problem"
    assert found.what.startswith("plugin broken: skipped because broken-dist 0.9 (plugin broken) is broken: ")
    assert "out of order" in found.what


def test_models_in_the_cache_are_listed_wherever_it_is(tmp_path: Path) -> None:
    for folder in ("xdg/huggingface/hub", ".cache/huggingface/hub", "home/hub", "hub"):
        (tmp_path / folder / f"models--who--{folder.replace('/', '-')}").mkdir(parents=True)
    cases: tuple[tuple[dict[str, str], str], ...] = (
        ({}, "who/.cache-huggingface-hub"),
        ({"XDG_CACHE_HOME": str(tmp_path / "xdg")}, "who/xdg-huggingface-hub"),
        ({"HF_HOME": str(tmp_path / "home")}, "who/home-hub"),
        ({"HF_HOME": str(tmp_path / "home"), "HF_HUB_CACHE": str(tmp_path / "hub")}, "who/hub"),
    )
    for environment, name in cases:
        assert looked(tmp_path, environment)["models"].what == f"in the cache: {name}"


def test_an_empty_cache_matters_only_offline(tmp_path: Path) -> None:
    assert looked(tmp_path)["models"].status == "ok"
    assert looked(tmp_path, {"HF_HUB_OFFLINE": "0"})["models"].status == "ok"
    found = looked(tmp_path, {"HF_HUB_OFFLINE": "1"})["models"]
    assert (found.status, "unset HF_HUB_OFFLINE" in found.fix) == ("note", True)


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Of(free=2 * 1024**3))
    found = looked(tmp_path)["disk"]
    assert (found.status, found.what) == ("note", f"2.0 GiB free at {tmp_path / 'runs'}/")


def test_variables_that_nothing_reads_are_noted(tmp_path: Path) -> None:
    found = looked(tmp_path, {"XMCLAB_LIMIT": "x", "XMCLAB_LIMITS": "line=64M"})
    assert (found["XMCLAB_LIMIT"].status, found["XMCLAB_LIMITS"].status) == ("note", "ok")
    assert "XMCLAB_LIMITS" in found["XMCLAB_LIMIT"].fix
