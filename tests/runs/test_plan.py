"""What a run is said to take."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from xmclab.errors import MemoryLimitError
from xmclab.host.config import Config
from xmclab.runs import plan as plans
from xmclab.runs import rehearsal
from xmclab.runs.plan import Plan, plan
from xmclab.runs.run import run

REFRESHED = ("epochs=3", "refresh_every=1", "miner=ann", "pool.eta=2", "search=neighbours", "baseline=all")


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MOST", 5)


@pytest.fixture(scope="module")
def planned(small_config: Callable[..., Config]) -> Plan:
    return plan(small_config(*REFRESHED))


def test_parts_add_up_to_the_peak(planned: Plan) -> None:
    counted = [part for part in planned.memory if planned.counts(part)]
    assert sum(part.bytes for part in counted) == planned.peak()
    assert all(part.bytes > 0 for part in planned.memory)
    assert len({(part.name, part.place) for part in planned.memory}) == len(planned.memory)
    phases = set(plans.REST)
    for phase in phases:
        lasting = sum(part.bytes for part in planned.memory if part.phase == "always")
        in_phase = sum(part.bytes for part in planned.memory if part.phase == phase)
        assert lasting + in_phase <= planned.peak()


def test_times_add_up_to_the_total(planned: Plan) -> None:
    spans = {span.name: span for span in (*planned.training, *planned.others)}
    assert planned.total_seconds == pytest.approx(sum(span.total for span in spans.values()))
    assert {name: span.times for name, span in spans.items() if span.times != 1} == {
        "epoch after a refresh": 2,
        "refresh": 2,
    }
    assert all(span.seconds >= 0 for span in spans.values())


def test_refreshes_in_steps_and_negatives_made_before_training_are_spans(small_config: Callable[..., Config]) -> None:
    stepwise = plan(small_config("epochs=3", "refresh_steps=4", "miner=ann", "pool.eta=2"))
    times = {span.name: span.times for span in stepwise.training}
    assert times == {"first steps": 1, "epoch after a refresh": 3, "refresh": 3}  # after 4, 8 and 12 of 15 steps
    prepared = plan(small_config("miner=bm25", "pool.eta=2"))
    assert "negatives before training" in {span.name for span in prepared.others}


def test_the_document_has_these_fields(planned: Plan) -> None:
    document = json.loads(json.dumps(planned.document()))
    assert list(document) == [
        *("recipe", "data", "device", "epochs", "steps", "memory", "seconds", "disk", "warnings"),
    ]
    assert document["data"] == {"name": "tiny", "train": 1262, "test": 399, "labels": 922}
    assert set(document["memory"]) == {"parts", "host", "device"}
    assert set(document["memory"]["parts"][0]) == {"name", "place", "phase", "bytes", "at_peak"}
    assert document["memory"]["host"]["peak"] == planned.peak()
    assert document["memory"]["device"]["peak"] == 0
    assert set(document["seconds"]) == {"parts", "epoch", "train", "total"}
    assert document["seconds"]["epoch"] == pytest.approx(document["seconds"]["train"] / 3)
    assert document["disk"]["total"] == sum(part["bytes"] for part in document["disk"]["parts"])
    assert document["warnings"] == []


def test_more_labels_need_more_memory(small_config: Callable[..., Config], tmp_path: Path) -> None:
    parts = []
    for labels in (40, 80):
        folder = tmp_path / str(labels)
        folder.mkdir()
        with (folder / "lbl.json").open("w") as stream:
            stream.writelines(f'{{"uid": "{n}", "title": "word{n} common"}}\n' for n in range(labels))
        for name in ("trn", "tst"):
            with (folder / f"{name}.json").open("w") as stream:
                stream.writelines(
                    f'{{"uid": "{n}", "title": "word{n} text {n}", "target_ind": [{n % labels}]}}\n' for n in range(80)
                )
        found = plan(small_config(f"data={folder}"))
        parts.append({part.name: part.bytes for part in found.memory})
    for name in ("tables", "optimizer of tables"):
        assert parts[1][name] - parts[0][name] >= 40 * 16 * 4


def test_disk_is_what_the_run_then_takes(
    small_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(*REFRESHED)
    found = plan(config, folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    folder = run(config, tmp_path / "run", Console(quiet=True)).folder
    sizes = {file.name: file.bytes for file in found.disk}
    for name in ("model.safetensors", "labels.jsonl"):
        assert sizes[name] == pytest.approx((folder / name).stat().st_size, rel=0.05, abs=2000)
    for name in ("encoder/", "search/"):
        actual = sum(file.stat().st_size for file in (folder / name).rglob("*"))
        assert sizes[name] == pytest.approx(actual, rel=0.3)


def test_nothing_is_written(
    small_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a run folder, nor tokens in the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XMCLAB_CACHE", str(tmp_path / "cache"))
    plan(small_config("data.cache=auto", *REFRESHED))
    plan(small_config(f"data.cache={tmp_path / 'tokens'}"))
    assert list(tmp_path.iterdir()) == []


def test_validation_takes_its_time_and_a_copy_of_the_weights(small_config: Callable[..., Config]) -> None:
    found = plan(small_config("validate.share=0.2", "epochs=3", "validate.every=2"))
    spans = {span.name: span.times for span in found.others}
    assert (spans["validation"], spans["evaluation"]) == (2, 1)
    assert "weights of the best epoch" in {part.name for part in found.memory}


@pytest.mark.parametrize(("epochs", "every", "times"), [(4, 0, 1), (4, 1, 4), (5, 2, 3), (4, 2, 2), (1, 5, 1)])
def test_evaluations_are_counted(epochs: int, every: int, times: int) -> None:
    assert plans._times(epochs, every) == times


def test_what_does_not_fit_is_not_rehearsed(
    small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmclab.system.usage.free", lambda: 400_000)
    monkeypatch.setattr("xmclab.runs.rehearsal.steps", lambda *_: pytest.fail("a step was made"))
    found = plan(small_config())
    (warning,) = found.warnings
    assert warning.startswith("memory: at least ")
    assert "head.clf.table_dtype=bfloat16" in warning
    document = found.document()
    assert document["seconds"] is None
    assert document["memory"]["parts"]


def test_a_peak_above_what_is_free_is_warned_of(
    small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmclab.system.usage.free", lambda: 20 << 20)
    monkeypatch.setattr("xmclab.system.usage.resident", lambda: 1 << 20)
    (warning,) = plan(small_config()).warnings
    assert "is needed at the peak, 21.0 MiB is free; lower " in warning


def test_what_cannot_even_start_is_an_error(small_config: Callable[..., Config]) -> None:
    with pytest.raises(MemoryLimitError, match="the heads alone need"):
        plan(small_config("head.clf.dim=500000000"))


def test_a_run_warns_as_well(
    small_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmclab.system.usage.free", lambda: 400_000)
    said = io.StringIO()
    run(small_config(), tmp_path / "run", Console(file=said))
    assert "warning: memory: at least " in said.getvalue()
