"""Whole benches on the tiny data: cached, resumed, failing in part, repeatable."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from xmclab.host.registry import default_registry
from xmclab_bench import bench as bench_module
from xmclab_bench import runner
from xmclab_bench.bench import run_bench
from xmclab_bench.report import compare_folders
from xmclab_bench.spec import Cell, load_spec
from xmclab_bench.view import GridView, Job
from xmclab_bench.write import write_report

SPEC = """\
# Reductions in small.
base: [recipe=unidec, data=tiny, epochs=2, evaluate.every=1, sampler.batch_size=512, miner=none,
       encoder.dim=16, encoder.chars_from=0, head.de.dim=16, head.clf.dim=16, device=cpu]
rows:
  POL: [reduction=pol]
  PSL: [reduction=psl]
grid: {seed: [0, 1]}
metrics: [P@1, PSP@1]
measures: [train, memory, pool, positives, target]
target: P@1=0
"""
FAULTY = """\
from dataclasses import dataclass
import xmclab
from xmclab.api import MultiClassLoss

@dataclass
class Faulty(MultiClassLoss):
    def terms(self, s_QP, y_QP):
        raise RuntimeError("out of order")

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("loss", "faulty", Faulty)]
"""


@pytest.fixture(scope="module")
def spec_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "small.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(autouse=True)
def _in_this_process(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, cells_in_this_process: Callable[..., Any]
) -> None:
    """Cells train in this process; `processes` tests are real."""
    if "processes" not in request.keywords:
        monkeypatch.setattr(runner, "processes", cells_in_this_process)


@pytest.fixture(scope="module")
def cells(spec_file: Path, tmp_path_factory: pytest.TempPathFactory, cells_in_this_process: Callable[..., Any]) -> Path:
    """The finished cells of the spec."""
    folder = tmp_path_factory.mktemp("cells")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "processes", cells_in_this_process)
        result = bench(spec_file, folder)
    assert not result["left_out"]
    return folder


def bench(spec_file: Path, cells: Path, *overrides: str, at_once: int = 1) -> dict[str, Any]:
    spec = load_spec(str(spec_file), overrides)
    return run_bench(spec, default_registry(), cells, Console(quiet=True), at_once).document


def stamps(cells: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in cells.glob("*/result.json")}


def numbers(document: dict[str, Any]) -> list[Any]:
    return [(row["name"], row["search"], row["metrics"]) for row in document["rows"]]


def test_a_bench_compares_rows_by_searches(spec_file: Path, cells: Path) -> None:
    document = bench(spec_file, cells)
    assert [(row["name"], row["search"]) for row in document["rows"]] == [
        (name, search) for name in ("POL", "PSL") for search in ("de", "clf", "de+clf")
    ]
    assert document["seeds"] == [0, 1]
    assert [each["name"] for each in document["baselines"]] == ["tfidf_labels", "tfidf_neighbours"]
    assert document["baselines"][0]["data"] == document["data"][0]["sha256"]
    group = document["groups"][0]
    assert group["state"] == "finished"
    assert len(group["curves"]) == 2
    assert [record["epoch"] for record in group["curves"][0]] == [1, 2]
    assert 0 < group["curves"][0][0]["seconds"] < group["curves"][0][1]["seconds"]
    for measure in ("train", "memory", "pool", "positives"):
        assert group["measures"][measure]["mean"] > 0
    first = [curve[0]["seconds"] for curve in group["curves"]]
    assert document["rows"][0]["target"]["values"] == first  # every search reaches 0 at once
    assert group["differs"] == {"reduction.de.name": "pol", "reduction.clf.name": "pol"}
    row = document["rows"][0]
    values = row["metrics"]["P@1"]["values"]
    assert row["metrics"]["P@1"]["mean"] == pytest.approx(sum(values) / 2)
    assert sum(band["P@1"] for band in row["bands"].values()) == pytest.approx(sum(values) / 2)
    tests = [test for test in document["tests"] if (test["search"], test["metric"]) == ("de", "P@1")]
    (test,) = tests
    other = document["rows"][3]["metrics"]["P@1"]["mean"]
    assert test["value"] == pytest.approx(row["metrics"]["P@1"]["mean"] - other)


def test_a_bench_compares_the_searches_of_a_row(spec_file: Path, cells: Path) -> None:
    document = bench(spec_file, cells)
    means = {(row["name"], row["search"]): row["metrics"]["P@1"]["mean"] for row in document["rows"]}
    found = {(each["name"], each["a"], each["b"]): each for each in document["heads"] if each["metric"] == "P@1"}
    pairs = [("de", "clf"), ("de", "de+clf"), ("clf", "de+clf")]
    assert list(found) == [(name, *pair) for name in ("POL", "PSL") for pair in pairs]
    for (name, a, b), test in found.items():
        assert test["value"] == pytest.approx(means[name, a] - means[name, b])
        assert test["low"] <= test["value"] <= test["high"]
        assert 0 < test["p"] <= 1


def test_a_target_is_that_of_a_search_and_needs_every_seed(spec_file: Path, cells: Path) -> None:
    group = bench(spec_file, cells)["groups"][0]
    values = {
        search: [max(record["metrics"][search]["P@1"] for record in curve) for curve in group["curves"]]
        for search in ("de", "clf", "de+clf")
    }
    lower, higher = sorted(values["de"])
    assert lower < higher
    between = bench(spec_file, cells, f"target=P@1={(lower + higher) / 2:.4f}")["rows"]
    by_search = {row["search"]: row["target"] for row in between[:3]}
    assert by_search["de"] is None
    assert {search for search, target in by_search.items() if target} == {
        search for search, some in values.items() if min(some) >= (lower + higher) / 2
    }


def test_a_spec_may_name_the_reference_and_switch_off_baselines(spec_file: Path, cells: Path) -> None:
    document = bench(spec_file, cells, "baseline=none", "reference=POL")
    assert (document["reference"], document["baselines"]) == ("POL", [])


def test_baselines_that_fail_do_not_cost_the_comparison(
    spec_file: Path, cells: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(bench_module, "measured", broken)
    console = Console(file=io.StringIO())
    document = run_bench(load_spec(str(spec_file), []), default_registry(), cells, console).document
    assert (len(document["rows"]), document["baselines"]) == (6, [])
    assert "no baselines: RuntimeError: out of order" in console.file.getvalue()


def test_one_seed_marks_no_best(spec_file: Path, cells: Path) -> None:
    document = bench(spec_file, cells, "seed=0")
    assert document["tests"]
    assert not any(value["best"] for row in document["rows"] for value in row["metrics"].values())


def test_what_was_run_is_not_run_again(spec_file: Path, cells: Path) -> None:
    before = stamps(cells)
    assert len(before) == 4
    bench(spec_file, cells)
    assert stamps(cells) == before
    assert not list(cells.glob("*/model.safetensors"))


def test_a_bench_that_was_cut_off_goes_on(spec_file: Path, cells: Path) -> None:
    before = stamps(cells)
    cut = sorted(before)[0]
    (cells / cut / "result.json").unlink()
    document = bench(spec_file, cells)
    after = stamps(cells)
    assert {name for name in after if after[name] != before[name]} == {cut}
    assert not document["left_out"]


def test_the_same_seeds_give_the_same_numbers(spec_file: Path, cells: Path, tmp_path: Path) -> None:
    again = bench(spec_file, tmp_path / "anew", "seed=0")
    first = bench(spec_file, cells, "seed=0")
    assert numbers(again) == numbers(first)


def test_another_config_or_other_code_is_another_cell(
    spec_file: Path, tmp_path: Path, cells: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xmclab_bench import cells as module
    from xmclab_bench.spec import resolve_cells

    def keys(*overrides: str) -> set[str]:
        found, _ = resolve_cells(load_spec(str(spec_file), overrides), default_registry())
        return {module.Keys().key(config) for _, config in found}

    known = keys()
    assert len(known) == 4
    assert keys("profile=true", "tracker=none") == known
    assert not keys("epochs=3") & known
    assert not keys("reader.text=title+content") & known
    valid = tmp_path / "valid.csv"
    found = []
    for text in ("query,labels\n", "query,labels\na,b\n"):
        valid.write_text(text)
        found.append(keys(f"validate.file={valid}"))
    assert not found[0] & found[1]
    monkeypatch.setattr(module, "_package_hash", lambda: "another")
    assert not keys() & known


@pytest.mark.processes
def test_a_failing_cell_is_reported_and_the_others_finish(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    text = SPEC.replace("POL: [reduction=pol]", f"bad: [plugin={tmp_path / 'faulty.py'}, loss.de=faulty]")
    (tmp_path / "half.yaml").write_text(text)
    out = tmp_path / "out"
    arguments = ("seed=0", "--jobs", 2, "--cells", tmp_path / "cells", "--out", out, "--json")
    code, stdout, _ = call("bench", tmp_path / "half.yaml", *arguments)
    assert code == 4  # that of the cell
    document = json.loads(stdout)
    assert [row["name"] for row in document["rows"]] == ["PSL"] * 3
    (missing,) = document["left_out"]
    assert (missing["name"], missing["seed"]) == ("bad", 0)
    assert "out of order" in missing["reason"]
    assert "bad" in (out / "table.md").read_text()


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are found in /proc")
def test_a_bench_that_is_terminated_ends_its_runs(spec_file: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "xmclab",
        "bench",
        str(spec_file),
        "epochs=500",
        "--cells",
        str(tmp_path / "cells"),
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        try:
            record = wait_for(lambda: next((tmp_path / "cells").glob("*/metrics.jsonl"), None))
            child = child_of(process.pid)
            process.terminate()
            assert process.wait(timeout=30) == 143
        finally:
            process.kill()
    assert record.parent.is_dir()
    wait_for(lambda: not Path(f"/proc/{child}").exists())


def wait_for(what: Callable[[], Any], seconds: float = 60) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def child_of(pid: int) -> int:
    """The process that this one has started."""
    by_thread = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    (child,) = " ".join(by_thread).split()
    return int(child)


@pytest.mark.parametrize(("wanted", "at_once", "threads"), [("1", 1, 1), ("64", 1, None), ("", 1, None), ("8", 99, 1)])
def test_cells_share_the_cores_that_there_are_and_that_are_wanted(
    wanted: str, at_once: int, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    @contextlib.contextmanager
    def processes(threads: int) -> Iterator[runner.Launch]:
        told.append(threads)
        yield lambda command, log, stop=None: 0

    monkeypatch.setattr(runner, "processes", processes)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    runner.run_jobs([], at_once, Console(quiet=True))
    assert told == [threads or len(os.sched_getaffinity(0))]


def test_equal_time_gives_the_slower_row_fewer_epochs(spec_file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from xmclab_bench import bench as module

    monkeypatch.setattr(module, "_train_seconds", lambda job: 1.0 if job.cell.variant == "POL" else 2.0)
    document = bench(spec_file, tmp_path / "cells", "seed=0", "budget=time", "measures=epochs")
    assert [group["measures"]["epochs"]["mean"] for group in document["groups"]] == [2, 1]
    assert document["budget"] == "time"


def test_rows_that_cannot_be_timed_are_listed_whole(
    spec_file: Path, tmp_path: Path, monkeypatch: Any, cells_in_this_process: Callable[..., Any]
) -> None:
    def launch_all_but_pol(command: Sequence[str], log: Path, stop: runner.Watch | None = None) -> int:
        if "reduction=pol" in command:
            log.write_text("error: out of order\n")
            return 5
        with cells_in_this_process(1) as launch:
            return launch(command, log)

    monkeypatch.setattr(runner, "processes", lambda threads: contextlib.nullcontext(launch_all_but_pol))
    document = bench(spec_file, tmp_path / "cells", "epochs=1", "budget=time", "measures=epochs")
    assert [group["name"] for group in document["groups"]] == ["PSL"]
    assert [(each["name"], each["seed"], each["reason"]) for each in document["left_out"]] == [
        ("POL", 0, "out of order"),
        ("POL", 1, "out of order"),
    ]


def test_a_folder_that_cannot_be_written_is_a_failure_of_its_cells(spec_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("a file")
    spec = load_spec(str(spec_file), ["seed=0"])
    result = run_bench(spec, default_registry(), tmp_path / "cells", Console(quiet=True))
    assert [failure.exit_code for failure in result.failures] == [7, 7]


def test_the_view_survives_files_in_the_making(tmp_path: Path) -> None:
    job = Job(Cell("", "row", "", 0, ()), tmp_path)
    assert job.share is None
    for text in ("", "epochs: [", "- 1"):
        (tmp_path / "config.yaml").write_text(text)
        (tmp_path / "metrics.jsonl").write_text('{"event": "step", "epoch": 1}\n{"ev')
        assert job.share is None
    (tmp_path / "config.yaml").write_text("epochs: 4")
    assert job.share == 0.25
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with GridView([job], console) as view:
        view.update()
        view.ended(job, "no reason")
        view.update()
    assert "25 %" in console.file.getvalue()
    assert "failed" in console.file.getvalue()


def test_a_cell_runs_from_its_first_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it has recorded nothing yet."""
    jobs = [Job(Cell("", row, "", 0, ()), tmp_path / row) for row in ("first", "second")]
    monkeypatch.setattr("xmclab_bench.runner.SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr("xmclab_bench.runner.run_cell", lambda job, launch: time.sleep(0.1))
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    runner.run_jobs(jobs, 1, console)
    shown = console.file.getvalue()
    assert re.search(r"first +running *\n.*second +waiting", shown)
    assert re.search(r"second +running", shown)


def test_rows_of_other_data_are_shown_and_not_tested(cells: Path, tmp_path: Path) -> None:
    folders = sorted(path.parent for path in cells.glob("*/result.json"))
    other = tmp_path / "other"
    shutil.copytree(folders[0], other)
    document = json.loads((other / "result.json").read_text())
    document["data"] |= {"sha256": "another", "name": "elsewhere"}
    (other / "result.json").write_text(json.dumps(document))
    config = (other / "config.yaml").read_text().replace("epochs: 2", "epochs: 3")
    (other / "config.yaml").write_text(config)
    compared = compare_folders([folders[0], other], ["P@1"])
    assert [data["name"] for data in compared["data"]] == ["tiny", "elsewhere"]
    assert compared["tests"] == []
    assert not any(row["metrics"]["P@1"]["best"] for row in compared["rows"])


def test_reports_of_single_runs_and_of_runs_in_progress(
    cells: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    folders = sorted(path.parent for path in cells.glob("*/result.json"))
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("config.yaml", "environment.json"):
        (unfinished / name).write_bytes((folders[0] / name).read_bytes())
    config = (unfinished / "config.yaml").read_text().replace("epochs: 2", "epochs: 20")
    (unfinished / "config.yaml").write_text(config)
    lines = (folders[0] / "metrics.jsonl").read_text().splitlines()
    (unfinished / "metrics.jsonl").write_text("\n".join(lines[:-1]) + '\n{"event": "st')
    out = tmp_path / "out"
    code, stdout, _ = call("report", *folders, unfinished, "--out", out, "--json")
    assert code == 0
    document = json.loads(stdout)
    assert [len(group["seeds"]) for group in document["groups"]] == [2, 2, 1]
    assert [group["state"] for group in document["groups"]] == ["finished", "finished", "training, 2 of 20 epochs done"]
    assert "unfinished" in (out / "report.html").read_text()
    os.utime(unfinished / "metrics.jsonl", (0, time.time() - 1800))
    state = compare_folders([folders[0], unfinished], ["P@1"])["groups"][1]["state"]
    assert state == "unfinished, 2 of 20 epochs done, nothing written for 30 minutes"


def test_curves_show_validation_where_a_run_has_it(
    cells: Path, tmp_path: Path, train: Callable[..., Path], call: Callable[..., tuple[int, str, str]]
) -> None:
    """The rows are still those of the test queries, on which runs with and without it are compared."""
    plain = next(cells.glob("*/result.json")).parent
    validated = train(tmp_path / "validated", "epochs=2", "validate.share=0.1", "sampler.batch_size=512")
    document = compare_folders([plain, validated], ["P@1", "PSP@1"])
    curves = [group["curves"][0] for group in document["groups"]]
    assert [[(record["split"], record["epoch"]) for record in curve] for curve in curves] == [
        [("test", 1), ("test", 2)],
        [("validation", 1), ("validation", 2)],
    ]
    result = json.loads((validated / "result.json").read_text())
    rows = {row["search"]: row for row in document["rows"] if row["name"] == "validated"}
    assert rows["de"]["metrics"]["PSP@1"]["values"] == [result["metrics"]["de"]["PSP@1"]]
    assert {test["metric"] for test in document["tests"]} == {"P@1", "PSP@1"}

    (validated / "result.json").unlink()
    unfinished = compare_folders([validated], ["P@1"])
    assert unfinished["groups"][0]["state"] == "training, 2 of 2 epochs done, numbers of its validation queries"
    shown = unfinished["rows"][0]["metrics"]["P@1"]["values"]
    assert shown == [unfinished["groups"][0]["curves"][0][-1]["metrics"]["de"]["P@1"]]


def test_folders_that_are_no_runs_and_unknown_metrics_are_refused(
    cells: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    folder = next(cells.glob("*/result.json")).parent
    assert call("report", tmp_path)[0] == 3
    code, _, stderr = call("report", folder, "--metrics", "P@1,PSP@2", "--out", tmp_path / "out")
    assert code == 2
    assert "no run has 'PSP@2'" in stderr
    assert not (tmp_path / "out").exists()


def test_a_dry_run_notices_data_that_is_not_there(spec_file: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    assert call("bench", spec_file, "--dry-run")[0] == 0
    code, _, stderr = call("bench", spec_file, "data=./nowhere", "--dry-run")
    assert code == 3
    assert "nowhere" in stderr


def test_the_command_writes_every_form(
    spec_file: Path, cells: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    out = tmp_path / "out"
    code, stdout, _ = call("bench", spec_file, "--cells", cells, "--out", out)
    assert code == 0
    assert "PSL" in stdout
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "table.md",
        "table.csv",
        "table.tex",
        "document.json",
    }
    document = json.loads((out / "document.json").read_text())
    assert document["command"] == f"xmclab bench {spec_file} --cells {cells} --out {out}"
    assert abs(datetime.fromisoformat(document["date"]) - datetime.now(UTC)) < timedelta(minutes=5)
    assert call("bench", spec_file, "--cells", cells, "--out", out)[0] == 0
    assert call("bench", spec_file, "seed=0", "--cells", cells, "--out", out)[0] == 7
    assert call("bench", spec_file, "seed=0", "--cells", cells, "--out", out, "--overwrite")[0] == 0
    written = (out / "report.html").read_text()
    assert write_report(json.loads((out / "document.json").read_text()), tmp_path / "again").read_text() == written


def test_usage(call: Callable[..., tuple[int, str, str]]) -> None:
    code, stdout, _ = call("bench", "--list")
    assert code == 0
    assert "reductions" in stdout
    assert call("bench")[0] == 2
    assert call("bench", "reduction")[0] == 2
    code, stdout, _ = call("bench", "losses", "seed=0", "data=tiny", "--dry-run")
    assert code == 0
    assert len(stdout.splitlines()) == 5
