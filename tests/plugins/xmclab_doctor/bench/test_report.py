"""The whole report at its smallest, and what must not be in it."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from types import SimpleNamespace as Of
from typing import Any

import pytest
import torch

from xmclab_doctor.bench.report import clean, machine


def test_the_report_is_one_document(tiny_report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(tiny_report)) == tiny_report
    assert (tiny_report["schema"], tiny_report["kind"]) == (1, "xmclab doctor --bench")
    parts = {"schema", "kind", "seconds", "machine", "versions", "equality", "waits", "peaks", "rows", "verdict"}
    assert set(tiny_report) == parts
    assert {"xmclab", "torch", "numpy"} <= tiny_report["versions"].keys()
    assert tiny_report["machine"]["device"] == "cpu"


def test_everything_that_can_be_compared_on_a_cpu_is_equal(tiny_report: dict[str, Any]) -> None:
    found = {check["name"]: check["passed"] for check in tiny_report["equality"]}
    assert {name for name, passed in found.items() if passed is None} == {
        "losses of vectors in bfloat16",
        "device and CPU",
        "kernels=triton and torch",
    }
    assert all(passed for passed in found.values() if passed is not None), tiny_report["equality"]
    compared = {"packed and padded", "chunked and whole", "streamed and as a matrix", "with and without kernels"}
    assert compared | {"updates of a table, adamw", "losses of 2 steps", "ids of exact search"} <= found.keys()


def test_rows_have_times_beside_their_roof(tiny_report: dict[str, Any]) -> None:
    rows = {(row["name"], row["variant"]): row for row in tiny_report["rows"]}
    assert set(rows) == {("titles", "default"), ("titles", "without kernels"), ("all labels", "default")}
    for row in rows.values():
        assert row["skipped"] == ""
        assert 0 < row["roof_ms"] < row["ms"]
        assert abs(row["fraction"] - row["roof_ms"] / row["ms"]) < 1e-9
        assert abs(sum(row["shares"].values()) - 1) < 1e-6
    assert rows["titles", "default"]["tokens"] > 16 * 4 + 40 * 4
    assert rows["all labels", "default"]["tokens"] < 16 * 17  # labels have no texts


def test_no_names_and_no_paths_are_in_it(tiny_report: dict[str, Any]) -> None:
    text = json.dumps(tiny_report)
    for name in (socket.gethostname(), getpass.getuser(), str(Path.home()), str(Path.cwd())):
        assert f'"{name}' not in text
        assert f"{name}/" not in text
    private = ["box-7", "/home/ada", "ada"]
    message = {"detail": ["OSError: /home/ada/.cache/x.so on box-7", "ada's", "Canada", "xmclab/runs/a.py:3", 1, None]}
    cleaned = {"detail": ["OSError: *** on ***", "***'s", "Canada", "xmclab/runs/a.py:3", 1, None]}
    assert clean(message, private) == cleaned


def test_progress_names_every_part(tiny_report: dict[str, Any]) -> None:
    names = [goal["name"] for goal in tiny_report["verdict"]]
    assert names[:4] == [
        "comparisons that fail",
        "waits of a step",
        "launches of a step",
        "share of waiting for the plan",
    ]
    assert "share of the roof: titles" in names


def test_a_card_is_described_without_what_tells_it_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Of(name="NVIDIA L4", major=8, minor=9, total_memory=24 << 30, uuid="GPU-1234")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: card)
    found = machine(torch.device("cuda"))
    assert (found["card"], found["capability"], found["memory_bytes"]) == ("NVIDIA L4", [8, 9], 24 << 30)
    assert "GPU-1234" not in str(found)
