"""Sizes, predictions and counts of rows; test_report.py has them measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from xmclab.errors import DataError, Problem
from xmclab_doctor.bench import rows as module
from xmclab_doctor.bench.equality import Steps
from xmclab_doctor.bench.roof import Speeds
from xmclab_doctor.bench.rows import FULL, SMALL, Row, kernels_among, launches, lengths, measured, predict, work_of
from xmclab_doctor.bench.synthetic import Network, batches

CPU = torch.device("cpu")
NETWORK = Network(1, 16, 2, 60, 32)


def test_a_step_is_profiled_on_a_card_only(small_steps: Steps) -> None:
    assert launches(small_steps.trainer(CPU)) is None


def test_kernels_are_told_from_copies_and_from_the_host() -> None:
    events = [
        ("DeviceType.CUDA", "ampere_bf16_gemm"),
        ("DeviceType.CUDA", "Memcpy HtoD"),
        ("DeviceType.CPU", "aten::mm"),
    ]
    assert (
        kernels_among([*events, ("DeviceType.CUDA", "Memset (Device)"), ("DeviceType.CUDA", "Optimizer.step#AdamW")])
        == 1
    )


def test_padding_is_work(small_steps: Steps) -> None:
    """What a padded step encodes is its texts times the longest of a block; packed, it is their tokens."""
    network, row = FULL.network, Row("titles", 32, (10, 24), 64, (10, 24), 300, 16)
    found = {}
    for packing in ("auto", "off"):
        trainer = small_steps.trainer(CPU, f"encoder.packing={packing}")
        [prepared] = batches(trainer, 1)
        pairs = lengths(prepared)
        texts = len(prepared.batch.rows_Q) + len(prepared.batch.labels_P)
        assert sum(each for each, _ in pairs) == texts
        tokens = sum(each * length for each, length in pairs)
        found[packing] = (
            tokens,
            work_of(trainer, prepared, row, network).half,
            predict(trainer, prepared, True),
        )
        if packing == "auto":
            ids = torch.cat([chunk.tokens["ids_T"] for chunk in (*prepared.queries, *prepared.labels)])
            assert tokens == len(ids)
    assert all(more > less for more, less in zip(found["off"], found["auto"], strict=True))


@pytest.mark.parametrize("half", [True, False])
def test_a_card_takes_the_last_row_with_fused_kernels_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    monkeypatch.setattr(module, "measured", lambda row, variant, *rest: (row, variant))
    found: list[Any] = list(
        module.rows(tmp_path, torch.device("cuda"), half, replace(SMALL, network=NETWORK), Speeds(1, 1, 1))
    )
    asked = [(row.name, "kernels=triton" in row.settings()) for row, variant in found if variant == "kernels=triton"]
    assert asked == ([("all labels, BCE", True)] if half else [])


def test_a_row_that_cannot_be_measured_says_why(small_steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise DataError(Problem("encoder.model", "no such folder"))

    monkeypatch.setattr(module, "_measured", fails)
    found = measured(FULL.rows[0], "default", small_steps.folder, CPU, False, FULL, Speeds(1, 1, 1))
    assert (found.ms, found.skipped) == (None, "DataError: encoder.model: no such folder")


def test_a_row_that_does_not_fit_goes_in_chunks_and_else_is_left_out(
    small_steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = replace(FULL, network=NETWORK, steps=1)
    row = Row("titles", 16, (8, 16), 40, (8, 16), 100, 8, ("encoder.packing=off",))
    monkeypatch.setattr(module.sizes, "device_free", lambda device: 10)
    found = measured(row, "default", small_steps.folder, CPU, False, size, Speeds(1, 1, 1))
    assert found.name == "titles, in chunks of 256"
    assert found.skipped.endswith("is predicted, 10 B is free")
