"""Run folders side by side: which runs share a row, and runs that have no numbers yet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from xmclab_bench.report import compare_folders
from xmclab_bench.tables import footnote

Call = Callable[..., tuple[int, str, str]]


def copy(run: Path, folder: Path, seed: int = 0) -> Path:
    shutil.copytree(run, folder)
    config = (folder / "config.yaml").read_text()
    assert "\nseed: 0\n" in f"\n{config}"
    (folder / "config.yaml").write_text(config.replace("seed: 0\n", f"seed: {seed}\n", 1))
    return folder


@pytest.mark.parametrize("records", [0, 2])
def test_a_run_that_was_stopped_before_its_first_evaluation(
    small_run: Path, tmp_path: Path, call: Call, records: int
) -> None:
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    shutil.copy(small_run / "config.yaml", stopped)
    lines = (small_run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join(lines[:records]))
    code, out, err = call("report", stopped, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.startswith("There are no results to compare yet.\n")
    assert "stopped: training, 0 of" in out
    assert (tmp_path / "out" / "report.html").is_file()
    document = compare_folders([small_run, stopped], ["P@1"])
    assert [group["name"] for group in document["groups"]] == [small_run.name, "stopped"]
    unfinished, short = document["verdict"]["sentences"][1:]
    assert unfinished == "Not finished: stopped."
    assert short.startswith(f"{small_run.name} trained for at most 3 steps")


def test_two_runs_of_one_config_and_seed_are_two_rows(small_run: Path, tmp_path: Path) -> None:
    first, other, again = (
        copy(small_run, tmp_path / name, seed) for name, seed in (("first", 0), ("other", 1), ("again", 0))
    )
    document = compare_folders([first, other, again], ["P@1"])
    assert [(group["name"], group["seeds"]) for group in document["groups"]] == [("first", [0, 1]), ("again", [0])]
    assert document["title"] == "2 runs"
    (test,) = [test for test in document["tests"] if test["search"] == "de"]
    assert (test["a"], test["b"], test["value"]) == ("first", "again", 0.0)


def test_a_row_of_several_seeds_is_named_without_them(small_run: Path, tmp_path: Path) -> None:
    runs = [copy(small_run, tmp_path / f"{name}{seed}", seed) for name in ("ds-", "ds_seed") for seed in (0, 1)]
    names = [[group["name"] for group in compare_folders(some, ["P@1"])["groups"]] for some in (runs[:2], runs[2:])]
    assert names == [["ds"], ["ds"]]
    assert [group["name"] for group in compare_folders(runs, ["P@1"])["groups"]] == ["ds-0", "ds_seed0"]
    assert compare_folders(runs[:1], ["P@1"])["groups"][0]["name"] == "ds-0"


def test_baselines_are_those_of_the_runs(small_run: Path, tmp_path: Path) -> None:
    run = copy(small_run, tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    result["baselines"] = {"guess": {"P@1": 1.5, "R@10": 7.0}}
    (run / "result.json").write_text(json.dumps(result))
    (baseline,) = compare_folders([run, small_run], ["P@1"])["baselines"]
    assert (baseline["name"], baseline["data"]) == ("guess", result["data"]["sha256"])
    assert baseline["metrics"] == {"P@1": {"mean": 1.5, "sd": None, "values": [1.5], "best": False}}


def test_runs_of_other_propensities_are_not_tested_against_each_other(small_run: Path, tmp_path: Path) -> None:
    first, other = copy(small_run, tmp_path / "first"), copy(small_run, tmp_path / "other")
    assert compare_folders([first, other], None)["metrics"] == ["P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5"]
    result = json.loads((other / "result.json").read_text())
    result["propensity"] = {"A": 0.6, "B": 2.6, "source": "evaluate.propensity"}
    (other / "result.json").write_text(json.dumps(result))
    document = compare_folders([first, other], None)
    assert document["tests"] == []
    assert [data["propensity"]["A"] for data in document["data"]] == [0.55, 0.6]
    assert "labels, propensities A=0.6 B=2.6 (evaluate.propensity)." in footnote(document)
