"""`xmclab tune` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xmclab.errors import ConfigError
from xmclab_bench import cli
from xmclab_bench.tune_cli import _name, _seconds

SMALL = ("recipe=unidec", "data=tiny", "epochs=2", "miner=none", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=16")


def xmclab(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "xmclab", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.processes
def test_a_csv_is_tuned_and_trained_even_if_a_trial_runs_out_of_memory(tmp_path: Path) -> None:
    texts = ["red apple pie", "green apple tart", "red car", "fast green car", "apple cake", "car wheel"]
    rows = "\n".join(f"{texts[n % 6]} {n},{'fruit' if 'apple' in texts[n % 6] else 'vehicle'}" for n in range(120))
    (tmp_path / "mine.csv").write_text(f"text,labels\n{rows}\n")
    (tmp_path / "space.yaml").write_text("encoder.dim: [16, 1000000000000, 2000000000000]\n")
    mine = ["data=mine.csv", *(word for word in SMALL if not word.startswith(("data=", "encoder.dim=")))]
    wanted = ["--trials", "4", "--space", "space.yaml", "--out", "study", "--metric", "P@1"]
    done = xmclab(tmp_path, "tune", *mine, *wanted, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["score"] > 0
    assert document["chosen"] == {"encoder.dim": "16", "epochs": document["chosen"]["epochs"]}
    assert "failed: out of memory" in done.stderr
    result = json.loads((tmp_path / document["run"] / "result.json").read_text())
    assert result["metrics"]
    assert "validation" not in result  # trained on all training queries
    assert (tmp_path / document["page"]).is_file()
    again = xmclab(tmp_path, "tune", *mine, *wanted)
    assert again.returncode == 0, again.stderr
    assert again.stderr.endswith("tune: 4 of 4 trials are done\n")  # nothing is left to run
    assert "test: P@1 " in again.stdout
    assert document["command"] in again.stdout


def test_times_are_read() -> None:
    assert (_seconds(""), _seconds("90s"), _seconds("1h30m")) == (None, 90, 5400)
    for wrong in ("1", "1 hour", "1h30", "h"):
        with pytest.raises(ConfigError, match="such as"):
            _seconds(wrong)


def test_the_folder_is_named_after_recipe_and_data() -> None:
    assert _name(["recipe=unidec", "data=../x/mine.csv", "epochs=2"]) == "unidec-mine"
    assert _name(["epochs=2"]) == "custom"


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "optuna" else object())
    with pytest.raises(ConfigError, match=r"needs optuna.*xmclab\[tune\]"):
        cli.needs_tune()
