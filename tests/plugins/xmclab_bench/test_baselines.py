"""Untrained baselines beside a bench: the numbers of a run, measured once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run
from xmclab_bench import baselines
from xmclab_bench.baselines import measured
from xmclab_bench.cells import Keys

SMALL = ("data=tiny", "epochs=1", "sampler.batch_size=512", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=16")


def found(cells: Path, *overrides: str) -> list[Any]:
    return measured([resolve(["recipe=unidec", *SMALL, *overrides], default_registry())], Keys(), cells)


def test_they_are_those_of_a_run(tmp_path: Path) -> None:
    result = run(resolve(["recipe=unidec", *SMALL], default_registry()), tmp_path / "run")
    (of_data,) = found(tmp_path)
    assert of_data.metrics == result.baselines
    assert of_data.data == result.document["data"]["sha256"]
    assert len(of_data.metrics) == 2


def test_they_are_measured_once_for_all_configs_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = found(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(baselines, "open_data", None)  # cannot be called
    assert found(tmp_path, "epochs=7", "loss.de=supcon", "seed=3", "evaluate.every=1") == [first]
    (one,) = found(tmp_path, "baseline=tfidf_labels")
    assert list(one.metrics) == ["tfidf_labels"]
    assert sorted(tmp_path.iterdir()) == before


def test_their_options_and_the_data_decide(tmp_path: Path) -> None:
    (first,) = found(tmp_path, "baseline=tfidf_neighbours")
    (other,) = found(tmp_path, "baseline=tfidf_neighbours", "baseline.neighbours=3")
    assert first.data == other.data
    assert first.metrics != other.metrics
    assert len(list(tmp_path.glob("*.baseline.json"))) == 2
    assert json.loads(next(tmp_path.glob("*.baseline.json")).read_text())["data"] == first.data


def test_none_are_measured_if_none_are_wanted(tmp_path: Path) -> None:
    (nothing,) = found(tmp_path, "baseline=none")
    assert nothing.metrics == {}
    assert list(tmp_path.iterdir()) == []
