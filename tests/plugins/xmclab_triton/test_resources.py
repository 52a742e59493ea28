"""The kernels compiled for GPUs that are not there: machine code with tensor cores that keeps its tile in registers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from xmclab_triton import resources
from xmclab_triton.resources import ARCHITECTURES, Usage, usage

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
SHARED = {80: 163, 89: 99, 90: 227, 100: 227}  # KiB that a program can have


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ.get("TRITON_INTERPRET") is None, "kernels are compiled in this process"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="triton compiles on Linux")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("variant", ["log_sums", "gradient, ds+bce"])
def test_a_kernel_fits_every_architecture(variant: str, architecture: int) -> None:
    found = usage(variant, architecture)
    assert found.tensor_cores
    assert 64 < found.registers <= 255  # a tile of scores alone takes 64
    assert found.stack <= 64  # bytes of a thread that did not fit the registers
    assert 32 * 1024 <= found.shared <= SHARED[architecture] * 1024  # two tiles of operands, at least


def test_the_page_shows_what_every_variant_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "usage", lambda *_: Usage(1, 2, 3072, True))
    head, line, *rows = resources.table()
    assert rows[0] == "| log_sums | " + " | ".join(["1 / 2 / 3"] * 4) + " |"
    text = PAGE.read_text(encoding="utf-8")
    assert head in text
    assert line in text
    assert all(row.partition(" 1 /")[0] in text for row in rows)
