"""The loop: deterministic, on one device, and never updating from a number that is not finite."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.console import Console

from xmclab.data import open_dataset, with_reader
from xmclab.errors import ConfigError, DivergedError, MemoryLimitError, StorageError
from xmclab.host.config import Config
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import OptimSettings
from xmclab.kernels import dispatch as accelerator
from xmclab.kernels import scores_torch as fused_torch
from xmclab.objectives import engine as closed_form
from xmclab.runs.profile import Profile
from xmclab.runs.run import TestQueries, run
from xmclab.runs.store import load_model, peak_memory
from xmclab.training.optim import schedule_factor
from xmclab.training.trainer import Trainer, ahead

SMALL = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=16", "sampler.batch_size=256"]
SMALL += ["epochs=2", "baseline=none"]
QUIET = Console(quiet=True)


def config(*overrides: str) -> Config:
    return resolve([*SMALL, *overrides], default_registry())


def trainer(*overrides: str) -> Trainer:
    settings = config(*overrides)
    return Trainer(settings, open_dataset("tiny", "title", default_registry()))


def one_step(made: Trainer, step: int = 0) -> tuple[float, float, dict[str, float]]:
    prepared = made.prepare(step, made.rows_N[:64])
    return made.train_step(step, prepared.batch, made.on_device(prepared))


def test_the_same_config_gives_the_same_numbers_twice(tmp_path: Path) -> None:
    results = [run(config(), tmp_path / name, QUIET) for name in ("a", "b")]
    assert results[0].metrics == results[1].metrics
    logs = [[json.loads(line) for line in (r.folder / "metrics.jsonl").open()] for r in results]
    assert [record["loss"] for record in logs[0] if record["event"] == "step"] == [
        record["loss"] for record in logs[1] if record["event"] == "step"
    ]
    weights = [(r.folder / "model.safetensors").read_bytes() for r in results]
    assert weights[0] == weights[1]
    other = run(config("seed=1"), tmp_path / "c", QUIET)
    assert other.metrics != results[0].metrics


@pytest.mark.parametrize(
    "parts",
    [
        ["sampler=random", "miner=none"],
        ["sampler=cluster", "miner=ann", "pool.cap=300"],
        ["encode.chunk=40"],
        ["reduction=pal_n", "objective.label_weights=propensity"],
        ["reduction=pol", "loss.clf=supcon+bce", "head.clf.table=adagrad"],
    ],
)
def test_a_step_leaves_no_tensor_behind_on_the_cpu(parts: list[str]) -> None:
    """On the `meta` device any operation that mixes in a tensor of the CPU raises."""
    made = trainer("device=meta", *parts)
    prepared = made.prepare(0, made.rows_N[:64])
    tensors = made.on_device(prepared)
    loss, values = made.compute(0, tensors)
    norm = made.optimizers.clip()
    made.optimizers.step()
    assert {tensor.device.type for tensor in (loss, norm, *values.values(), *made.model.parameters())} == {"meta"}


def test_the_meta_device_would_notice() -> None:
    made = trainer("device=meta")
    prepared = made.prepare(0, made.rows_N[:64])
    tensors = made.on_device(prepared)
    queries = prepared.query_chunks
    queries[0]["weight_T"] = torch.ones_like(queries[0]["weight_T"])
    tensors.query_chunks[0]["features_U"] = queries[0]["features_U"]
    with pytest.raises(RuntimeError):
        made.compute(0, tensors)


def test_chunks_do_not_change_a_step() -> None:
    whole, chunked = (
        trainer("head.de.dropout=0", "head.clf.dropout=0"),
        trainer("head.de.dropout=0", "head.clf.dropout=0", "encode.chunk=7"),
    )
    assert one_step(chunked)[0] == pytest.approx(one_step(whole)[0], rel=1e-6)
    for a, b in zip(whole.model.parameters(), chunked.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss() -> None:
    made = trainer()
    first = one_step(made)[0]
    for step in range(1, 15):
        last = one_step(made, step)[0]
    assert last < first


def test_a_number_that_is_not_finite_stops_before_the_update(tmp_path: Path) -> None:
    made = trainer()
    with torch.no_grad():
        made.model.head("clf").g2[0].weight[0, 0] = math.nan
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    with pytest.raises(DivergedError, match=r"step 7.*clf/ds/q2l") as caught:
        one_step(made, step=7)
    after = made.model.state_dict()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
    assert caught.value.details["step"] == 7
    assert caught.value.exit_code == 5


def test_a_diverged_run_leaves_a_failure_record(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        run(config("encoder.lr=1e38", "optim.clip=0", "optim.warmup=0"), tmp_path / "out", QUIET)
    record = json.loads((tmp_path / "out" / "failure" / "step.json").read_text())
    assert record["rows"]
    assert record["labels"]


def test_the_three_learning_rates_reach_their_parameters() -> None:
    made = trainer("encoder.lr=0.1", "head.de.lr=0.2", "head.clf.lr=0.3", "head.clf.table_lr=0.4", "optim.warmup=0")
    rates = {}
    for optimizer in made.optimizers._all:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                rates[id(parameter)] = group["lr"]
    model = made.model
    assert rates[id(model.encoder.embedding.weight)] == 0.1
    assert rates[id(model.head("de").g1[0].weight)] == 0.2
    assert rates[id(model.head("clf").g2[0].weight)] == 0.3
    assert rates[id(model.head("clf").psi.weight)] == 0.4
    assert len(rates) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("schedule", "middle"),
    [("cosine", 0.5 * (1 + math.cos(math.pi * 40 / 90))), ("linear", 50 / 90), ("constant", 1.0)],
)
def test_schedules_warm_up_and_come_down(schedule: str, middle: float) -> None:
    factor = schedule_factor(OptimSettings(schedule=schedule, warmup=0.1), steps=100, steps_per_epoch=10)
    assert factor(0) == pytest.approx(1 / 11)
    assert factor(10) == 1.0
    assert factor(50) == pytest.approx(middle)
    in_epochs = schedule_factor(OptimSettings(schedule=schedule, warmup=3), steps=100, steps_per_epoch=10)
    assert in_epochs(29) < 1.0 == in_epochs(30)


def test_clipping_bounds_the_norm_of_dense_and_sparse_gradients_together() -> None:
    made = trainer("optim.clip=0.01")
    prepared = made.prepare(0, made.rows_N[:64])
    made.compute(0, made.on_device(prepared))
    norm = made.optimizers.clip()
    assert norm > 0.01
    squares = [
        (p.grad.coalesce().values() if p.grad.is_sparse else p.grad).square().sum()
        for p in made.model.parameters()
        if p.grad is not None
    ]
    assert torch.stack(squares).sum().sqrt().item() == pytest.approx(0.01, rel=1e-3)


def test_a_saved_run_loads_and_ranks_the_same(tmp_path: Path) -> None:
    result = run(config("optim.decay=0.1"), tmp_path / "out", QUIET)
    loaded, model = load_model(result.folder, default_registry())
    assert loaded.to_dict() == with_reader(config("optim.decay=0.1")).to_dict()
    data = open_dataset("tiny", "title", default_registry())
    from xmclab.data.propensity import inverse_propensity, propensity_parameters
    from xmclab.evaluation.metrics import evaluate
    from xmclab.evaluation.search import rank_all

    tokenise = model.encoder.tokenise
    rankings = rank_all(
        model,
        lambda: loaded.make("index"),
        tokenise(data.test.texts),
        tokenise(data.label_texts),
        data.test.filter_NL,
        100,
        512,
    )
    weights = inverse_propensity(data.train.targets_NL, *propensity_parameters(data.name))
    found = {name: evaluate(ranking, data.test.targets_NL, weights) for name, ranking in rankings.items()}
    for name, metrics in result.metrics.items():
        assert found[name] == pytest.approx(metrics)


def test_filter_pairs_are_left_out_of_every_ranking(tmp_path: Path) -> None:
    from xmclab.evaluation.search import rank_all

    made = trainer()
    data = made.data
    tokens = made.model.encoder.tokenise(data.test.texts)
    rankings = rank_all(
        made.model, lambda: made.config.make("index"), tokens, made.label_tokens, data.test.filter_NL, 100, 512
    )
    assert list(rankings) == ["de", "clf", "de+clf"]
    rows, columns = data.test.filter_NL.nonzero()
    for ranking in rankings.values():
        assert not (ranking.ids_NK[rows] == columns[:, None]).any()


def test_a_run_folder_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(StorageError, match="not empty"):
        run(config(), tmp_path, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_run_that_could_not_start_leaves_its_folder_free(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run(config("device=cuda:7"), tmp_path / "out", QUIET)
    assert run(config("epochs=1"), tmp_path / "out", QUIET).metrics


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocate: Callable[[], object], message: str
) -> None:
    monkeypatch.setattr(Trainer, "compute", lambda *_: allocate())
    with pytest.raises(MemoryLimitError, match=message) as caught:
        run(config(), tmp_path / "out", QUIET)
    assert caught.value.exit_code == 6


def test_where_torch_cannot_compile_the_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = importlib.import_module("torch._dynamo.exc").TorchDynamoException("no compiler found")
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    monkeypatch.setattr(Trainer, "compute", lambda *_: raising(error)())
    with pytest.raises(ConfigError, match=r"compile=true: .*no compiler found \(install .* compile=false\)"):
        run(config("compile=on"), tmp_path / "out", QUIET)
    with pytest.raises(RuntimeError, match="no compiler found"):  # of a part that compiles by itself
        run(config(), tmp_path / "other", QUIET)


def test_other_errors_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "compute", lambda *_: raising(RuntimeError("of a plugin"))())
    with pytest.raises(RuntimeError, match="of a plugin"):
        run(config(), tmp_path / "out", QUIET)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="CUDA devices found"):
        trainer("device=cuda:7")
    with pytest.raises(ConfigError, match="no such device"):
        trainer("device=teapot")


def test_ahead_keeps_order_and_passes_errors_on() -> None:
    assert list(ahead(lambda x: x * x, range(5))) == [0, 1, 4, 9, 16]

    def fail(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    results = ahead(fail, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_a_query_without_labels_is_never_in_a_plan() -> None:
    made = trainer()
    assert np.diff(made.targets_NL.indptr)[made.rows_N].min() > 0


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


def test_compile_compiles_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    trainer("compile=on")
    assert compiled == ["Bag"]


@pytest.mark.parametrize("on", [True, False])
def test_compile_compiles_the_passes_over_scores(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    monkeypatch.setattr(accelerator, "WORTH_LOADING", 1 << 62)
    offered: list[ModuleType | None] = []  # and not taken, as that needs a compiler
    monkeypatch.setattr(closed_form, "fused_for", lambda x: offered.append(accelerator.fused_for(x)))
    made = trainer(f"compile={on}", "loss.clf=ds")
    made.step(0, made.prepare(0, made.rows_N[:64]))
    assert offered == [fused_torch if on else None] * 2


def test_evaluation_every_n_epochs_is_logged(tmp_path: Path) -> None:
    result = run(config("epochs=3", "evaluate.every=1"), tmp_path / "out", QUIET)
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    evaluations = [record for record in records if record["event"] == "eval"]
    assert [record["epoch"] for record in evaluations] == [1, 2, 3]
    assert evaluations[-1]["metrics"] == result.metrics


def test_every_refresh_is_logged_with_the_recall_of_its_search(tmp_path: Path) -> None:
    result = run(config("epochs=3", "miner=ann", "refresh_every=1"), tmp_path / "out", QUIET)
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    refreshes = [(record["epoch"], record["recall"]) for record in records if record["event"] == "refresh"]
    assert refreshes == [(1, 1.0), (2, 1.0)]


@pytest.mark.parametrize("useless", [["pool.eta=0"], ["reduction=pal_n"], ["miner=none"]])
def test_nothing_is_refreshed_that_nobody_uses(tmp_path: Path, useless: list[str]) -> None:
    settings = config("epochs=2", "miner=ann", "refresh_every=1", *useless)
    result = run(settings, tmp_path / "out", QUIET)
    assert "refresh" not in {json.loads(line)["event"] for line in (result.folder / "metrics.jsonl").open()}


def test_a_refresh_looks_with_one_head_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer("miner=ann")
    monkeypatch.setattr(type(made.model.head("clf")), "labels", lambda *_: pytest.fail("the whole table was read"))
    assert made.refresh(1).labels_LD.shape == (made.data.num_labels, 16)


def test_memory_is_told_where_the_system_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_memory(torch.device("cpu"))["peak"] > 2**20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory(torch.device("cpu")) == {}


def test_a_run_may_keep_its_numbers_only(tmp_path: Path) -> None:
    result = run(config("keep_model=false"), tmp_path / "out", QUIET)
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


def test_without_test_queries_there_are_no_points() -> None:
    made = trainer()
    test = TestQueries(made.config, made.data, made, Profile(made.device, on=False))
    test.metrics = {"de": {}}
    points = test.points()
    assert points["metrics"].tolist() == []
    assert list(points) == ["metrics"]


def test_the_run_folder_says_what_was_run(tmp_path: Path) -> None:
    result = run(config(), tmp_path / "out", QUIET)
    files = {path.name for path in result.folder.iterdir()}
    documents = {"config.yaml", "environment.json", "metrics.jsonl", "result.json", "labels.jsonl", "points.npz"}
    assert files == documents | {"model.safetensors", "encoder"}
    environment = json.loads((result.folder / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["data"]["sha256"] == json.loads((result.folder / "result.json").read_text())["data"]["sha256"]
