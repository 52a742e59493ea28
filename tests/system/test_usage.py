"""Memory of the process and of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xmclab.system import usage

linux = pytest.mark.skipif(not usage.STATUS.is_file(), reason="needs /proc")


@linux
def test_a_peak_is_seen_and_forgotten() -> None:
    usage.forget_peak()
    before = usage.resident()
    block = np.ones(1 << 23)  # 64 MiB
    held = usage.resident()
    assert held - before > 60 << 20
    del block
    assert usage.peak() >= held - (1 << 20)
    usage.forget_peak()
    assert usage.peak() < before + (32 << 20)


@linux
def test_what_is_free_is_less_than_the_machine_has() -> None:
    total = usage._field(usage.ROOM, "MemTotal")
    found = usage.free()
    assert found is not None
    assert total is not None
    assert 0 < found < total


def test_a_system_that_does_not_tell_is_not_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STATUS", "ROOM", "OWN_GROUP"):
        monkeypatch.setattr(usage, name, tmp_path / "nothing")
    assert usage.free() is None
    assert usage.resident() >= 0


@pytest.mark.parametrize(
    ("own", "group", "files"),
    [
        (
            "0::/box",
            "box",
            {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 1\ninactive_file 50\n"},
        ),
        (
            "4:cpu,memory:/box",
            "memory/box",
            {
                "memory.limit_in_bytes": "1000",
                "memory.usage_in_bytes": "700",
                "memory.stat": "total_inactive_file 50\n",
            },
        ),
    ],
    ids=["v2", "v1"],
)
def test_the_limit_of_a_cgroup_counts(
    own: str, group: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files that are merely cached give way."""
    (tmp_path / "own").write_text(own)
    (tmp_path / "groups" / group).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "groups" / group / name).write_text(text)
    monkeypatch.setattr(usage, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(usage, "OWN_GROUP", tmp_path / "own")
    assert usage.free() == 350


def test_a_cgroup_without_a_limit_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    monkeypatch.setattr(usage, "GROUPS", tmp_path)
    monkeypatch.setattr(usage, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(usage, "ROOM", tmp_path / "nothing")
    assert usage.free() is None
