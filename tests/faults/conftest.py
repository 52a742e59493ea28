"""What tests of faults share: a run folder and an export that they may spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from xmclab.host.registry import default_registry
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor


@pytest.fixture
def exported(small_run: Path, tmp_path: Path) -> Path:
    write_export(open_predictor(small_run, default_registry(), "cpu"), small_run, tmp_path / "export", None)
    return tmp_path / "export"


@pytest.fixture
def run_copy(small_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(small_run, tmp_path / "copy")
    return tmp_path / "copy"
