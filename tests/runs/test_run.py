"""Whole runs: deterministic, what their folder holds, and how they fail."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from xmclab.errors import ConfigError, DivergedError, MemoryLimitError
from xmclab.runs import store
from xmclab.runs.profile import Profile
from xmclab.runs.run import TestQueries, run
from xmclab.training.trainer import Trainer

SMALL = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=16", "sampler.batch_size=256"]
SMALL += ["epochs=2", "baseline=none"]
QUIET = Console(quiet=True)


def test_the_same_config_gives_the_same_numbers_twice(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    results = [run(small_config(), tmp_path / name, QUIET) for name in ("a", "b")]
    assert results[0].metrics == results[1].metrics
    logs = [[json.loads(line) for line in (r.folder / "metrics.jsonl").open()] for r in results]
    assert [record["loss"] for record in logs[0] if record["event"] == "step"] == [
        record["loss"] for record in logs[1] if record["event"] == "step"
    ]
    weights = [(r.folder / "model.safetensors").read_bytes() for r in results]
    assert weights[0] == weights[1]
    other = run(small_config("seed=1"), tmp_path / "c", QUIET)
    assert other.metrics != results[0].metrics


def test_a_diverged_run_leaves_a_failure_record(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    with pytest.raises(DivergedError):
        run(small_config("encoder.lr=1e38", "optim.clip=0", "optim.warmup=0"), tmp_path / "out", QUIET)
    record = json.loads((tmp_path / "out" / "failure" / "step.json").read_text())
    assert record["rows"]
    assert record["labels"]


def test_a_run_that_could_not_start_leaves_its_folder_free(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError):
        run(small_config("device=cuda:7"), tmp_path / "out", QUIET)
    assert run(small_config("epochs=1"), tmp_path / "out", QUIET).metrics


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("allocate", "message"),
    [
        (raising(torch.OutOfMemoryError("tried to allocate 12 GiB")), r"12 GiB.*encode\.chunk"),
        (lambda: torch.empty(1 << 48), r"tried to allocate \d+ bytes.*encode\.chunk"),
        (lambda: np.empty(1 << 48), r"Unable to allocate.*encode\.chunk"),
        (raising(MemoryError()), r"out of memory.*encode\.chunk"),
    ],
    ids=["torch on a GPU", "torch on a CPU", "numpy", "python"],
)
def test_out_of_memory_says_what_to_lower(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allocate: Callable[[], object],
    message: str,
    small_config: Callable[..., Any],
) -> None:
    monkeypatch.setattr(Trainer, "backward", lambda *_: allocate())
    with pytest.raises(MemoryLimitError, match=message) as caught:
        run(small_config(), tmp_path / "out", QUIET)
    assert caught.value.exit_code == 6


def test_where_torch_cannot_compile_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Any]
) -> None:
    error = importlib.import_module("torch._dynamo.exc").TorchDynamoException("no compiler found")
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    monkeypatch.setattr(Trainer, "backward", lambda *_: raising(error)())
    with pytest.raises(ConfigError, match=r"compile=true: .*no compiler found \(install .* compile=false\)"):
        run(small_config("compile=on"), tmp_path / "out", QUIET)
    with pytest.raises(RuntimeError, match="no compiler found"):  # of a part that compiles by itself
        run(small_config(), tmp_path / "other", QUIET)


def test_other_errors_stay_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Trainer, "backward", lambda *_: raising(RuntimeError("of a plugin"))())
    with pytest.raises(RuntimeError, match="of a plugin"):
        run(small_config(), tmp_path / "out", QUIET)


def test_bfloat16_products_train_with_finite_numbers(tmp_path: Path) -> None:
    """In a process of its own: some CPUs need the variable to multiply bfloat16 matrices at all."""
    command = [sys.executable, "-m", "xmclab", "run", *SMALL, "epochs=1", "precision=bfloat16", "--json", "--out"]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path / "out")], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    assert all(math.isfinite(record["loss"]) for record in steps if record["event"] == "step")
    assert json.loads(done.stdout)["metrics"]["de"]["P@1"] > 0


def test_evaluation_every_n_epochs_is_logged(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    result = run(small_config("epochs=3", "evaluate.every=1"), tmp_path / "out", QUIET)
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    evaluations = [record for record in records if record["event"] == "eval"]
    assert [record["epoch"] for record in evaluations] == [1, 2, 3]
    assert evaluations[-1]["metrics"] == result.metrics


def test_every_refresh_is_logged_with_the_recall_of_its_search(
    tmp_path: Path, small_config: Callable[..., Any]
) -> None:
    result = run(small_config("epochs=3", "miner=ann", "refresh_every=1"), tmp_path / "out", QUIET)
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    refreshes = [(record["epoch"], record["recall"]) for record in records if record["event"] == "refresh"]
    assert refreshes == [(1, 1.0), (2, 1.0)]


def test_the_run_folder_says_which_index_was_chosen(
    tmp_path: Path, small_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmclab.plan.indexes.auto.LISTS_FROM", 0)
    overrides = "epochs=2", "miner=ann", "refresh_every=1", "index.recall=0"
    folder = run(small_config(*overrides), tmp_path / "out", QUIET).folder
    [refresh] = [
        record for line in (folder / "metrics.jsonl").open() if (record := json.loads(line))["event"] == "refresh"
    ]
    chosen = store.load_indexes(folder)
    assert chosen.keys() == {"mining", "de", "clf", "de+clf"}
    assert chosen["mining"] == refresh["index"]
    for report in chosen.values():
        assert (report["name"], report["options"]["type"], report["options"]["probes"]) == ("faiss", "ivf", 3)
        assert 0 < report["recall"] <= 1


def test_a_named_index_leaves_nothing_to_say(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    folder = run(
        small_config("epochs=2", "miner=ann", "refresh_every=1", "index=faiss"), tmp_path / "out", QUIET
    ).folder
    assert store.load_indexes(folder) == {}


@pytest.mark.parametrize("useless", [["pool.eta=0"], ["reduction=pal_n"], ["miner=none"]])
def test_nothing_is_refreshed_that_nobody_uses(
    tmp_path: Path, useless: list[str], small_config: Callable[..., Any]
) -> None:
    settings = small_config("epochs=2", "miner=ann", "refresh_every=1", *useless)
    result = run(settings, tmp_path / "out", QUIET)
    assert "refresh" not in {json.loads(line)["event"] for line in (result.folder / "metrics.jsonl").open()}


def test_a_run_may_keep_its_numbers_only(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    result = run(small_config("keep_model=false"), tmp_path / "out", QUIET)
    assert not (result.folder / "model.safetensors").exists()
    with np.load(result.folder / "points.npz") as points:
        metrics = points["metrics"].tolist()
        for search, row in result.metrics.items():
            found = 100 * points[f"found {search}"].sum(axis=0) / points["best"].sum(axis=0)
            assert dict(zip(metrics, found.tolist(), strict=True)) == pytest.approx(row)
    bands = result.document["bands"]
    for search, row in result.metrics.items():
        assert sum(band["P@1"] for band in bands[search].values()) == pytest.approx(row["P@1"])
    assert result.document["memory"]["peak"] > 2**20


def test_without_test_queries_there_are_no_points(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    test = TestQueries(made.config, made.data, made, Profile(made.device, on=False))
    test.metrics = {"de": {}}
    points = test.points()
    assert points["metrics"].tolist() == []
    assert list(points) == ["metrics"]


def test_the_run_folder_says_what_was_run(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    result = run(small_config(), tmp_path / "out", QUIET)
    files = {path.name for path in result.folder.iterdir()}
    documents = {"config.yaml", "environment.json", "metrics.jsonl", "result.json", "labels.jsonl", "points.npz"}
    assert files == documents | {"indexes.json", "model.safetensors", "encoder"}
    environment = json.loads((result.folder / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["data"]["sha256"] == json.loads((result.folder / "result.json").read_text())["data"]["sha256"]
