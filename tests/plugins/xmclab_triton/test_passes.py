"""The kernels in Triton's interpreter: what they compute is what torch computes, in float64 or without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def errors() -> dict[str, Any]:
    """Measured in a process of its own: whether kernels are interpreted is decided when they are imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("interpreted.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_passes_are_their_definitions(errors: dict[str, Any], dtype: str) -> None:
    """With ragged edges, listed cells in any order, and a query and a label that have no negatives."""
    for name in ("queries", "labels", "listed", "listed, second pass", "value"):
        assert errors[f"torch.{dtype} {name}"] < 1e-6, name
    assert errors[f"torch.{dtype} gradient"] < (5e-4 if dtype == "float16" else 5e-6)  # it is rounded to float16


def test_the_smallest_costs_keep_their_digits(errors: dict[str, Any]) -> None:
    found = {name: error for name, error in errors.items() if name.startswith("softplus")}
    assert len(found) == 7
    assert max(found.values()) < 5e-7, found


@pytest.mark.parametrize("objective", ["ds pal_n 1.0", "bce ova 1.0", "0.7*ds+0.3*bce pal_n 1.0", "supcon pal_n 0.4"])
def test_blocks_of_a_table_are_those_of_torch(errors: dict[str, Any], objective: str) -> None:
    """With a bias, dropout and ignored pairs; the values, the gradient of the queries and the updates of the table."""
    for name in ("values", "queries", "table"):
        assert errors[f"{objective}: {name}"] < 3e-6, name


def test_steps_of_a_run_are_those_without_kernels(errors: dict[str, Any]) -> None:
    assert errors["steps: launches"] == {"none": 0, "triton": 6}  # both passes, and the second again as it clips
    assert errors["steps: losses"] < 1e-6
    assert errors["steps: updates"] < 1e-3  # AdamW divides the smallest gradients by their own size


def test_numbers_that_are_not_finite_are_seen(errors: dict[str, Any]) -> None:
    assert errors["finite in spite of NaN"] is False


def test_the_interpreter_declines_what_it_gets_wrong(errors: dict[str, Any]) -> None:
    assert errors["bfloat16"] == "Triton's interpreter takes float32 on a CPU, not bfloat16 on cpu"
