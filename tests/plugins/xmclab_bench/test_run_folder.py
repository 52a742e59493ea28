"""What a run folder says of its run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from xmclab_bench.report import compare_folders
from xmclab_bench.run_folder import read_run


def test_training_took_as_long_as_all_stages(small_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    alone = read_run(folder)
    result = json.loads((folder / "result.json").read_text())
    stages = {name: {"metrics": {}, "seconds": {"train": train}} for name, train in (("phi", 100.0), ("psi", 20.0))}
    (folder / "result.json").write_text(json.dumps({**result, "stages": stages}))
    staged = read_run(folder)
    own = result["seconds"]["train"]
    assert (alone.measure("train"), staged.measure("train")) == (own, own + 120)
    reached = [run.seconds_to("de", "P@1", 0.0) for run in (alone, staged)]
    assert reached[0] is not None
    assert reached[1] == pytest.approx(reached[0] + 120)


def test_of_an_earlier_stage_only_what_differs_from_the_last_is_shown(small_run: Path, tmp_path: Path) -> None:
    plain, staged = (shutil.copytree(small_run, tmp_path / name) for name in ("plain", "staged"))
    config = yaml.safe_load((staged / "config.yaml").read_text())
    stage = {**{key: config[key] for key in ("data", "encoder", "epochs")}, "pool": {**config["pool"], "beta": 1}}
    (staged / "config.yaml").write_text(json.dumps({**config, "stages": {"phi": stage}}))
    _, second = compare_folders([plain, staged], ["P@1"])["groups"]
    assert second["differs"] == {"stages.phi.pool.beta": 1}
