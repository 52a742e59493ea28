"""Whole runs: deterministic, what their folder holds, and how they fail."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from xmclab.data.propensity import inverse_propensity, propensity_parameters
from xmclab.data.validation import open_with_validation
from xmclab.errors import ConfigError, DivergedError, MemoryLimitError
from xmclab.evaluation.search import rank
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import ValidateSettings
from xmclab.runs import store
from xmclab.runs.best import BestEpoch
from xmclab.runs.measure import Queries
from xmclab.runs.profile import Profile
from xmclab.runs.run import RunResult, print_result, run
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
    assert "steps on cpu" in done.stderr
    assert "in bfloat16" in done.stderr
    known = json.loads((tmp_path / "out" / "environment.json").read_text())["numerics"]
    expected = {"device": "cpu", "precision": "bfloat16", "tf32": False, "deterministic": True, "encoder": {}}
    assert known == expected


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
    test = Queries(made.config, made.data, made, Profile(made.device, on=False))
    test.metrics = {"de": {}}
    points = test.points()
    assert points["metrics"].tolist() == []
    assert list(points) == ["metrics"]


def test_the_run_folder_says_what_was_run(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    result = run(small_config(), tmp_path / "out", QUIET)
    files = {path.name for path in result.folder.iterdir()}
    documents = {"config.yaml", "environment.json", "metrics.jsonl", "result.json", "labels.jsonl", "points.npz"}
    assert files == documents | {"indexes.json", "model.safetensors", "encoder", "manifest.json", ".lock"}
    environment = json.loads((result.folder / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["data"]["sha256"] == json.loads((result.folder / "result.json").read_text())["data"]["sha256"]


VALIDATED = ["epochs=3", "validate.share=0.2"]


def records_of(folder: Path, event: str) -> list[Any]:
    records = (json.loads(line) for line in (folder / "metrics.jsonl").open())
    return [record for record in records if record["event"] == event]


def worst_is_best(self: BestEpoch, metrics: Any) -> float:
    """In place of the value of an epoch: a model that learns is then best after its first."""
    return -float(metrics[self.search][self.metric])


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory, small_config: Callable[..., Any]) -> Path:
    """The folder of a run that kept its first epoch; not to be written to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BestEpoch, "_value", worst_is_best)
        return run(small_config(*VALIDATED), tmp_path_factory.mktemp("runs") / "early", QUIET).folder


def test_the_weights_of_the_best_epoch_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Any]
) -> None:
    """Compared with what the model was when that epoch was measured."""
    states: list[dict[str, torch.Tensor]] = []
    measure = BestEpoch.measure

    def captured(self: BestEpoch, epoch: int) -> dict[str, Any]:
        states.append({name: weight.clone() for name, weight in self.model.state_dict().items()})
        return measure(self, epoch)

    monkeypatch.setattr(BestEpoch, "measure", captured)
    monkeypatch.setattr(BestEpoch, "_value", worst_is_best)
    result = run(small_config(*VALIDATED), tmp_path / "out", QUIET)
    assert result.document["validation"]["epoch"] == 1
    _, model = store.load_model(result.folder, small_config().registry)
    saved = model.state_dict()
    assert all(torch.equal(saved[name], weight) for name, weight in states[0].items())
    assert all(any(not torch.equal(saved[name], other[name]) for name in saved) for other in states[1:])


def test_the_best_epoch_is_what_the_result_and_the_records_say(
    tmp_path: Path, small_config: Callable[..., Any]
) -> None:
    result = run(small_config(*VALIDATED, "validate.metric=R@10", "validate.search=de"), tmp_path / "out", QUIET)
    *measured, last = records_of(result.folder, "eval")
    assert [(record["split"], record["epoch"]) for record in measured] == [("validation", n) for n in (1, 2, 3)]
    values = [record["metrics"]["de"]["R@10"] for record in measured]
    best = json.loads((result.folder / "result.json").read_text())["validation"]
    assert (best["metric"], best["search"], best["queries"]) == ("R@10", "de", 252)
    assert best["epoch"] == 1 + values.index(max(values))
    assert best["metrics"] == measured[best["epoch"] - 1]["metrics"]
    assert [record["best"] for record in measured] == [
        value > max(values[:at], default=-1.0) for at, value in enumerate(values)
    ]
    assert (last["split"], last["epoch"], last["metrics"]) == ("test", best["epoch"], result.metrics)
    assert result.document["seconds"]["validate"] > 0


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of every ranking that runs make from here on."""
    counts: list[int] = []

    def counted(*arguments: Any) -> Any:
        counts.append(len(arguments[2]["de"]))
        return rank(*arguments)

    monkeypatch.setattr("xmclab.evaluation.search.rank", counted)
    return counts


def test_the_test_queries_are_ranked_exactly_once(
    tmp_path: Path, ranked: list[int], small_config: Callable[..., Any]
) -> None:
    said = io.StringIO()
    console = Console(file=said, width=200)
    run(small_config("epochs=3", "validate.share=0.2", "evaluate.every=1"), tmp_path / "out", console)
    assert ranked == [252] * 9 + [399] * 3  # by three searches
    assert "1010 training queries, 252 validation queries, 922 labels" in said.getvalue()
    assert "evaluate.every: no effect" in said.getvalue()


def test_a_run_that_stops_early_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Any]
) -> None:
    monkeypatch.setattr(BestEpoch, "_value", worst_is_best)
    said = io.StringIO()
    run(small_config(*VALIDATED, "stop.patience=1"), tmp_path / "out", Console(file=said, width=200))
    lines = [re.sub(r" P@1 .*", "", line) for line in said.getvalue().splitlines()]
    stops = "stopped after epoch 2: no better for 1 epoch (stop.patience)"
    assert lines[lines.index(stops) + 1] == "kept epoch 1, test: de"


def test_without_the_test_the_result_is_of_the_validation_queries(
    tmp_path: Path, ranked: list[int], monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Any]
) -> None:
    monkeypatch.setattr(BestEpoch, "_value", worst_is_best)
    result = run(small_config(*VALIDATED, "evaluate.test=false"), tmp_path / "out", QUIET)
    assert set(ranked) == {252}
    best = result.document["validation"]
    assert best["epoch"] == 1
    assert result.document["split"] == "validation"
    assert result.metrics == best["metrics"]  # of the epoch that was kept, not of the last
    records = records_of(result.folder, "eval")
    assert [(record["split"], record["epoch"]) for record in records] == [("validation", n) for n in (1, 2, 3)]


def test_without_test_and_validation_nothing_is_measured(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"evaluate.test=false.*validate.share"):
        run(small_config("evaluate.test=false"), tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()


def test_training_sees_no_validation_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Any]
) -> None:
    """Neither in batches and vocabulary nor in the frequencies that its weights come from."""
    seen: set[str] = set()
    made: list[Trainer] = []
    prepare = Trainer.prepare

    def watched(self: Trainer, step: int, rows: Any) -> Any:
        seen.update(self.data.train.texts[row] for row in rows)
        made.append(self)
        return prepare(self, step, rows)

    monkeypatch.setattr(Trainer, "prepare", watched)
    config = small_config("epochs=2", "validate.share=0.2", "objective.label_weights=propensity", "miner=ann")
    run(config, tmp_path / "out", QUIET)
    opened = open_with_validation(config)
    assert opened.validation
    assert seen
    assert seen <= set(opened.training.train.texts)
    assert not seen & set(opened.validation.test.texts)
    weights_L = made[0].label_weight_L
    assert weights_L is not None
    ours_L = inverse_propensity(opened.training.train.targets_NL, *propensity_parameters("tiny"))
    assert weights_L.numpy() == pytest.approx(ours_L / ours_L.mean(), rel=1e-6)


def test_what_is_measured_on_test_queries_does_not_depend_on_validation(
    tmp_path: Path, small_config: Callable[..., Any]
) -> None:
    """So that runs with and without it can be compared: the same queries, weights and baselines."""
    plain = run(small_config("epochs=1", "baseline=all"), tmp_path / "plain", QUIET)
    other = run(small_config("epochs=1", "baseline=all", "validate.share=0.2"), tmp_path / "other", QUIET)
    assert other.baselines == plain.baselines
    assert other.document["data"] == plain.document["data"]
    with np.load(plain.folder / "points.npz") as theirs, np.load(other.folder / "points.npz") as ours:
        assert np.array_equal(ours["best"], theirs["best"])


def test_the_best_epoch_is_what_later_commands_use(
    tmp_path: Path, early: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    document = json.loads((early / "result.json").read_text())
    assert document["validation"]["epoch"] == 1
    metrics = document["metrics"]
    assert json.loads(call("eval", early, "--json")[1])["metrics"] == metrics
    assert call("export", early, "--to", tmp_path / "export")[0] == 0
    assert json.loads(call("eval", tmp_path / "export", "--json")[1])["metrics"] == metrics
    said = [call("predict", folder, "--text", "plot functions", "--json") for folder in (early, tmp_path / "export")]
    labels = [re.findall(r'"label": (\d+)', out) for _, out, _ in said]
    assert labels[0] == labels[1] != []


def test_the_closing_table_says_which_epoch_was_kept(early: Path) -> None:
    document = json.loads((early / "result.json").read_text())
    said = io.StringIO()
    print_result(Console(file=said, width=200), RunResult(early, document["metrics"], {}, document))
    best = document["validation"]
    value = best["metrics"]["de+clf"]["P@1"]
    kept = f"kept epoch 1 of 3, best by P@1 of de+clf: {value:.2f} on 252 validation queries"
    assert kept in said.getvalue().splitlines()


def test_a_config_from_before_validation_still_runs(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    before = run(small_config("epochs=1"), tmp_path / "before", QUIET)
    config = yaml.safe_load((before.folder / "config.yaml").read_text())
    del config["validate"]
    (before.folder / "manifest.json").unlink()
    (before.folder / "config.yaml").write_text(yaml.safe_dump(config))
    again = resolve([f"recipe={before.folder / 'config.yaml'}"], default_registry())
    assert run(again, tmp_path / "again", QUIET).metrics == before.metrics
    assert "validation" not in before.document
    assert store.load_model(before.folder, default_registry())[0].settings.validate == ValidateSettings()


def test_a_wrong_choice_is_refused_before_the_folder_is_made(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"validate\.metric: there is no metric 'P@2'"):
        run(small_config("validate.share=0.2", "validate.metric=P@2"), tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()


def test_a_file_of_validation_queries_leaves_training_as_it_is(
    tmp_path: Path, small_config: Callable[..., Any], call: Callable[..., tuple[int, str, str]]
) -> None:
    assert call("data", "convert", "tiny", tmp_path / "tables", "--to", "table")[0] == 0
    data = f"data={tmp_path / 'tables'}"
    (tmp_path / "valid.csv").write_text("query,labels\nplot functions,gnuplot-qt|gnuplot-nox\n")
    plain = run(small_config(data), tmp_path / "plain", QUIET)
    result = run(small_config(data, f"validate.file={tmp_path / 'valid.csv'}"), tmp_path / "out", QUIET)
    losses = [[step["loss"] for step in records_of(folder, "step")] for folder in (plain.folder, result.folder)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # a table that is settled earlier is rounded otherwise
    assert result.document["validation"]["queries"] == 1


def test_cut_offs_and_propensities_can_be_chosen(
    tmp_path: Path, small_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In what is measured, and in training that weighs labels by them."""
    made: list[Trainer] = []
    prepare = Trainer.prepare
    monkeypatch.setattr(Trainer, "prepare", lambda self, *rest: (made.append(self), prepare(self, *rest))[1])
    chosen = "evaluate.k=2,10", "evaluate.recall_k=7", "evaluate.propensity=0.6,2.6", "evaluate.every=1"
    config = small_config("epochs=1", "objective.label_weights=propensity", *chosen)
    shown = io.StringIO()
    result = run(config, tmp_path / "out", Console(file=shown))
    names = [f"{kind}@{k}" for kind in ("P", "PSP", "nDCG", "PSnDCG") for k in (2, 10)] + ["R@7", "PSR@7"]
    assert list(result.metrics["de"]) == names
    assert all(list(row) == names for row in result.baselines.values())
    assert result.document["propensity"] == {"A": 0.6, "B": 2.6, "source": "evaluate.propensity"}
    weights_L, ours_L = made[0].label_weight_L, inverse_propensity(made[0].targets_NL, 0.6, 2.6)
    assert weights_L is not None
    assert weights_L.numpy() == pytest.approx(ours_L / ours_L.mean(), rel=1e-6)
    print_result(Console(file=shown), result)
    assert "propensities A=0.6 B=2.6 (evaluate.propensity)" in " ".join(shown.getvalue().split())


def test_runs_say_where_their_propensities_came_from(small_run: Path) -> None:
    document = json.loads((small_run / "result.json").read_text())
    assert document["propensity"] == {"A": 0.55, "B": 1.5, "source": "default"}
