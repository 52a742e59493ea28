"""`xmclab doctor` on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from xmclab_doctor import facts

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that imports torch takes seconds; test_facts.py tries trials."""
    monkeypatch.setattr(facts, "TRIAL", "pass")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_this_machine_is_examined(call: Call) -> None:
    code, out, err = call("doctor", "--json")
    document: Any = json.loads(out)
    assert (code, err) == (document["exit_code"], "")
    assert {each["area"] for each in document["findings"]} == {"software", "hardware", "optional", "surroundings"}
    by_name = {each["name"]: each for each in document["findings"]}
    assert by_name["torch"]["status"] == "ok"
    assert by_name["precision"]["what"] == "precision=auto is float32 on cpu"
    assert by_name["attention"]["what"] == "grouped: products for the texts of each length"
    assert {"Python", "CPU", "bfloat16", "faiss", "plugins", "models", "disk"} <= by_name.keys()
    assert set(by_name["disk"]) == {"area", "name", "status", "what", "why", "fix"}


def test_a_broken_installation_is_shown_and_has_its_exit_code(
    call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `PYTHONPATH` would put it in front."""
    for name in ("faiss_cpu-1.15.1", "faiss_gpu-1.7.2"):
        (tmp_path / f"{name}.dist-info").mkdir()
        text = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(*name.replace("_", "-").rsplit("-", 1))
        (tmp_path / f"{name}.dist-info" / "METADATA").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = call("doctor")
    assert (code, err) == (4, "")
    assert "problem  faiss: two wheels supply it: faiss-cpu 1.15.1 and faiss-gpu 1.7.2" in out
    assert '-> pip uninstall -y faiss-cpu faiss-gpu && pip install "xmclab[cpu]"' in out


def test_the_report_is_shown_and_written(call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from xmclab_doctor.bench import report

    found = {
        "schema": 1,
        "seconds": 9.0,
        "machine": {"isa": "AVX2"},
        "equality": [{"name": "ids", "error": 0.5, "bound": 0.0, "passed": False, "detail": "8 of 8 queries"}],
        "peaks": {"products": {"float32": 1e12}, "bandwidth": 5e10, "pinned": None, "pageable": None, "launch": 2e-6},
        "rows": [{"name": "titles", "variant": "default", "skipped": "no memory"}],
        "verdict": [{"name": "waits", "value": None, "bound": 1.0, "met": None, "detail": "on a card only"}],
    }
    monkeypatch.setattr(report, "bench", lambda size, say: found)
    code, out, err = call("doctor", "--bench", "--out", tmp_path / "r.json")
    assert code == 4  # as a comparison failed
    assert json.loads((tmp_path / "r.json").read_text()) == found
    lines = [line.rstrip() for line in out.splitlines()]
    assert any(line.startswith("no   ids") and line.endswith("8 of 8 queries") for line in lines)
    assert "Peaks: float32 1 TFLOPS, memory 50 GB/s, a launch 2.0 us" in lines
    assert "  titles: skipped, no memory" in lines
    assert "-    waits: not measured (goal 1) - on a card only" in lines
    assert err == f"note: wrote {tmp_path / 'r.json'}; it names no machine, person or folder\n"


def test_bench_takes_no_keys_and_out_needs_it(call: Call) -> None:
    assert call("doctor", "--bench", "data=tiny")[0] == 2
    code, _, err = call("doctor", "--out", "x.json")
    assert (code, err) == (2, "error: --out: is the report of --bench (add --bench, or redirect --json)\n")
