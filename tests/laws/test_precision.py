"""The error of every road of low precision against float64: what is half, what is float32, and what is cast once.

TF32 and the attention kernels of a GPU cannot be measured on a CPU; their calls are tested where they are made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HALF = 2.0**-8  # the distance from 1 to the next number in bfloat16, halved


@pytest.fixture(scope="module")
def errors() -> dict[str, Any]:
    """Measured in a process of its own: some CPUs need the variable to multiply bfloat16 matrices at all."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("roads.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_texts_are_encoded_in_half_precision_to_float32_vectors(errors: dict[str, Any]) -> None:
    assert errors["vectors are float32"]
    assert errors["query vectors in float32"] < 1e-6
    assert 1e-5 < errors["query vectors"] < 5 * HALF
    assert 1e-5 < errors["encoded texts"] < 5 * HALF


def test_weights_are_cast_once_for_all_chunks(errors: dict[str, Any]) -> None:
    assert errors["casts of a weight in three chunks"] == 1
    assert errors["casts of a weight in one context"] == 2  # without and with their gradient
    assert errors["casts of a weight in a context of every chunk"] == 5
    assert errors["gradients of one context"]


def test_scores_are_summed_in_float32(errors: dict[str, Any]) -> None:
    """Operands are rounded, scores are not."""
    assert errors["scores of the same operands"] < 1e-5
    assert errors["scores"] < 0.6 * errors["scores rounded to bfloat16"]
    assert 0.03 < errors["scores rounded to bfloat16"] < 0.06


@pytest.mark.parametrize("words", ["ds+bce", "smooth_softmax"])
def test_losses_are_float32_and_their_gradients_half(errors: dict[str, Any], words: str) -> None:
    assert errors[f"{words}: dtype"] == "torch.float32"
    assert errors[f"{words}: value"] < 1e-3
    assert 1e-5 < errors[f"{words}: gradients"] < 3 * HALF


@pytest.mark.parametrize("words", ["ds", "bce"])
def test_tables_of_all_labels_have_half_operands_and_float32_sums(errors: dict[str, Any], words: str) -> None:
    assert errors[f"streamed {words}: dtypes"] == ["torch.float32"]
    assert errors[f"streamed {words}: value"] < 1e-3
    assert 1e-5 < errors[f"streamed {words}: gradients"] < 3 * HALF


def test_attention_on_a_cpu_is_that_of_float64(errors: dict[str, Any]) -> None:
    assert errors["attention in float32"] < 1e-6
    assert errors["attention in bfloat16"] < 3 * HALF
