"""`xmclab plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from xmclab.cli.plan import duration
from xmclab.runs import rehearsal

Call = Callable[..., tuple[int, str, str]]
SMALL = [
    "recipe=unidec",
    "data=tiny",
    "encoder.dim=16",
    "head.de.dim=16",
    "head.clf.dim=16",
    "epochs=2",
    "baseline=none",
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal, "MOST", 5)


def test_three_tables_are_printed_and_nothing_is_written(call: Call, tmp_path: Path) -> None:
    code, out, err = call("plan", *SMALL)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:8] == ["unidec", "on", "tiny:", "1262", "training", "queries,", "922", "labels,"]
    for row in ("memory", "tables", "time", "epoch", "disk", "model.safetensors"):
        assert any(line[:1] == [row] for line in lines), row
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_document(call: Call) -> None:
    code, out, _ = call("plan", *SMALL, "--json")
    assert code == 0
    assert json.loads(out)["recipe"] == "unidec"


def test_a_shortage_is_a_warning_on_stderr(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmclab.system.usage.free", lambda: 400_000)
    code, out, err = call("plan", *SMALL, "--json")
    assert code == 0
    assert err.splitlines()[-1].startswith("warning: memory: at least ")
    assert len(json.loads(out)["warnings"]) == 1


def test_full_disks_are_noticed_where_the_folder_will_be(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmclab.runs.sizes.disk_free", lambda folder: 10 if folder.name == "full" else 1 << 40)
    code, _, err = call("plan", *SMALL, "--out", "full")
    assert code == 0
    assert "warning: disk: " in err
    assert "is needed at full, 10 B is free; lower keep_model=false" in err
    assert "warning" not in call("plan", *SMALL, "--out", "empty")[2]


def test_what_cannot_start_ends_with_6(call: Call) -> None:
    code, out, err = call("plan", *SMALL, "head.clf.dim=500000000")
    assert (code, out) == (6, "")
    assert err.startswith("error: out of memory: the heads alone need ")
    assert "lower head.clf.table_dtype=bfloat16" in err


def test_mistakes_are_those_of_run(call: Call) -> None:
    assert call("plan", "recipe=unidecc")[0] == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.26, "0.3 s"), (42.4, "42 s"), (180, "3 min"), (3900, "65 min"), (7500, "2 h 05 min")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_memory_is_planned_for_a_card_that_is_not_here(call: Call) -> None:
    code, out, err = call("plan", *SMALL, "--device", "l4-24")
    assert (code, err) == (0, "")
    assert "steps on l4-24" in out
    assert "memory of the device" in out
    assert "peak (free: 22.20 GiB)" in out
    _, _, err = call("plan", *SMALL, "--device", "l4")
    assert err == "error: --device l4: unknown card (known: a100-40, a100-80, h100-80, l4-24, rtx4090-24, v100-32)\n"
