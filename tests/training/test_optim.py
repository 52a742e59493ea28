"""Optimizers: every parameter at its rate, schedules, and the clipping of all gradients together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.training.optim import schedule_factor


def test_the_three_learning_rates_reach_their_parameters(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer(
        "encoder.lr=0.1", "head.de.lr=0.2", "head.clf.lr=0.3", "head.clf.table_lr=0.4", "optim.warmup=0"
    )
    rates = {}
    for optimizer in made.optimizers._all:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                rates[id(parameter)] = group["lr"]
    model = made.model
    assert rates[id(model.encoder.embedding.weight)] == 0.1
    assert rates[id(model.head("de").g1[0].weight)] == 0.2
    assert rates[id(model.head("clf").g2[0].weight)] == 0.3
    assert rates[id(model.head("clf").psi.weight)] == 0.4
    assert len(rates) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("schedule", "middle"),
    [("cosine", 0.5 * (1 + math.cos(math.pi * 40 / 90))), ("linear", 50 / 90), ("constant", 1.0)],
)
def test_schedules_warm_up_and_come_down(schedule: str, middle: float) -> None:
    factor = schedule_factor(schedule, 0.1, steps=100, steps_per_epoch=10)
    assert factor(0) == pytest.approx(1 / 11)
    assert factor(10) == 1.0
    assert factor(50) == pytest.approx(middle)
    in_epochs = schedule_factor(schedule, 3, steps=100, steps_per_epoch=10)
    assert in_epochs(29) < 1.0 == in_epochs(30)


def test_tables_of_heads_may_have_a_schedule_of_their_own(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer(
        "optim.schedule=linear", "optim.warmup=0", "optim.table_schedule=constant", "optim.table_warmup=1"
    )
    optimizers, model, epoch = made.optimizers, made.model, made.steps // made.settings.epochs
    optimizers.resume(updates=epoch)
    rates = {id(p): g["lr"] for o in optimizers._all for g in o.param_groups for p in g["params"]}
    assert rates[id(model.head("clf").psi.weight)] == model.head("clf").table_lr
    for part, tensor in (
        (model.encoder, model.encoder.embedding.weight),
        (model.head("de"), model.head("de").g1[0].weight),
    ):
        assert rates[id(tensor)] == pytest.approx(part.lr * (1 - epoch / made.steps))
    optimizers.resume(updates=0)
    rates = {id(p): g["lr"] for o in optimizers._all for g in o.param_groups for p in g["params"]}
    assert rates[id(model.head("clf").psi.weight)] == pytest.approx(model.head("clf").table_lr / (epoch + 1))


def test_parameters_are_spared_from_decay_by_name(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("optim.decay=0.5", "optim.no_decay=clf.psi,de.g1.0.bias")
    decays = {}
    for optimizer in made.optimizers._all:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                decays[id(parameter)] = group.get("weight_decay", group.get("decay"))
    spared = {name for name, parameter in made.model.named_parameters() if decays[id(parameter)] == 0.0}
    assert spared == {"heads.clf.psi.weight", "heads.de.g1.0.bias"}
    assert {decay for decay in decays.values() if decay} == {0.5}


def test_frozen_rows_neither_move_nor_decay(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("optim.decay=0.5", "head.de.bias=prior")
    table, before = made.model.head("de").offset, made.model.head("de").offset.weight.clone()
    prepared = made.prepare(0, made.plan(0)[0])
    made.step(0, prepared)
    table.settle()
    assert torch.equal(table.weight, before)
    assert before.any()


def test_clipping_bounds_the_norm_of_all_gradients_together(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("optim.clip=0.01")
    prepared = made.prepare(0, made.rows_N[:64])
    made.backward(0, prepared)
    norm = made.optimizers.clip()
    assert norm > 0.01
    squares = [
        *(p.grad.square().sum() for p in made.model.parameters() if p.grad is not None),
        *(table.gradient()[1].square().sum() for table in made.model.tables()),
    ]
    assert len(squares) > 2
    assert torch.stack(squares).sum().sqrt().item() == pytest.approx(0.01, rel=1e-3)
