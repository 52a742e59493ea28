"""The trainer: on one device, and never updating from a number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from xmclab.errors import DivergedError
from xmclab.kernels import dispatch as accelerator
from xmclab.kernels import scores_torch as fused_torch
from xmclab.objectives import engine as closed_form
from xmclab.training.trainer import Trainer, ahead


def one_step(made: Trainer, step: int = 0) -> tuple[float, float, dict[str, float]]:
    prepared = made.prepare(step, made.rows_N[:64])
    return made.train_step(step, prepared.batch, made.on_device(prepared))


@pytest.mark.parametrize(
    "parts",
    [
        ["sampler=random", "miner=none"],
        ["sampler=cluster", "miner=ann", "pool.cap=300"],
        ["encode.chunk=40"],
        ["reduction=pal_n", "objective.label_weights=propensity"],
        ["reduction=pol", "loss.clf=supcon+bce", "head.clf.table=adagrad"],
    ],
)
def test_a_step_leaves_no_tensor_behind_on_the_cpu(parts: list[str], small_trainer: Callable[..., Any]) -> None:
    """On the `meta` device any operation that mixes in a tensor of the CPU raises."""
    made = small_trainer("device=meta", *parts)
    prepared = made.prepare(0, made.rows_N[:64])
    tensors = made.on_device(prepared)
    loss, values = made.compute(0, tensors)
    norm = made.optimizers.clip()
    made.optimizers.step()
    assert {tensor.device.type for tensor in (loss, norm, *values.values(), *made.model.parameters())} == {"meta"}


def test_the_meta_device_would_notice(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("device=meta")
    prepared = made.prepare(0, made.rows_N[:64])
    tensors = made.on_device(prepared)
    queries = prepared.query_chunks
    queries[0]["weight_T"] = torch.ones_like(queries[0]["weight_T"])
    tensors.query_chunks[0]["features_U"] = queries[0]["features_U"]
    with pytest.raises(RuntimeError):
        made.compute(0, tensors)


def test_chunks_do_not_change_a_step(small_trainer: Callable[..., Any]) -> None:
    whole, chunked = (
        small_trainer("head.de.dropout=0", "head.clf.dropout=0"),
        small_trainer("head.de.dropout=0", "head.clf.dropout=0", "encode.chunk=7"),
    )
    assert one_step(chunked)[0] == pytest.approx(one_step(whole)[0], rel=1e-6)
    for a, b in zip(whole.model.parameters(), chunked.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    first = one_step(made)[0]
    for step in range(1, 15):
        last = one_step(made, step)[0]
    assert last < first


def test_a_number_that_is_not_finite_stops_before_the_update(tmp_path: Path, small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    with torch.no_grad():
        made.model.head("clf").g2[0].weight[0, 0] = math.nan
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    with pytest.raises(DivergedError, match=r"step 7.*clf/ds/q2l") as caught:
        one_step(made, step=7)
    after = made.model.state_dict()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
    assert caught.value.details["step"] == 7
    assert caught.value.exit_code == 5


def test_ahead_keeps_order_and_passes_errors_on() -> None:
    assert list(ahead(lambda x: x * x, range(5))) == [0, 1, 4, 9, 16]

    def fail(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    results = ahead(fail, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_a_query_without_labels_is_never_in_a_plan(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    assert np.diff(made.targets_NL.indptr)[made.rows_N].min() > 0


def test_compile_compiles_the_encoder(monkeypatch: pytest.MonkeyPatch, small_trainer: Callable[..., Any]) -> None:
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    small_trainer("compile=on")
    assert compiled == ["Bag"]


@pytest.mark.parametrize("on", [True, False])
def test_compile_compiles_the_passes_over_scores(
    monkeypatch: pytest.MonkeyPatch, on: bool, small_trainer: Callable[..., Any]
) -> None:
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    monkeypatch.setattr(accelerator, "WORTH_LOADING", 1 << 62)
    offered: list[ModuleType | None] = []  # and not taken, as that needs a compiler
    monkeypatch.setattr(closed_form, "fused_for", lambda x: offered.append(accelerator.fused_for(x)))
    made = small_trainer(f"compile={on}", "loss.clf=ds")
    made.step(0, made.prepare(0, made.rows_N[:64]))
    assert offered == [fused_torch if on else None] * 2


def test_a_refresh_looks_with_one_head_only(monkeypatch: pytest.MonkeyPatch, small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("miner=ann")
    monkeypatch.setattr(type(made.model.head("clf")), "labels", lambda *_: pytest.fail("the whole table was read"))
    assert made.refresh(1).labels_LD.shape == (made.data.num_labels, 16)
