"""Passes that torch compiles: once, for all shapes."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from xmclab.kernels import scores_torch as fused_torch

by_torch = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch needs a C++ compiler")


@by_torch
def test_shapes_and_weights_that_change_are_not_compiled_anew() -> None:
    def run(rows: int, columns: int, weight: float) -> None:
        s_BP, x_B, x_P = torch.randn(rows, columns), torch.rand(rows), torch.rand(columns)
        log_sum_B, log_sum_P, near_B = fused_torch.log_sums(s_BP)
        fused_torch.weigh_(s_BP, log_sum_B, x_B, log_sum_P, x_P, near_B, softplus=weight)
        fused_torch.weigh_rows_(s_BP, weight, log_sum_B, x_B)

    run(17, 41, 0.3)
    counters: Any = torch._dynamo.utils.counters
    compiled = counters["stats"]["unique_graphs"]
    for shape in ((18, 41), (17, 40), (5, 60)):
        run(*shape, weight=0.1 * shape[0])
    assert counters["stats"]["unique_graphs"] == compiled
