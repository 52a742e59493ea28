"""Every loss in use: under every reduction that takes it, and in a run."""

from __future__ import annotations

import pytest
import torch

import xmclab.objectives.engine
import xmclab.training.streaming
from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.reductions.pol import Pol
from xmclab.training.trainer import Trainer

REGISTRY = default_registry()
LOSSES = [name for name in REGISTRY.names("loss") if "." not in name]
BINARY = [name for name in LOSSES if REGISTRY.get("loss", name).kind == "binary"]
each_loss = pytest.mark.parametrize("name", LOSSES)


def make_trainer(*overrides: str) -> Trainer:
    small = ["data=tiny", "encoder.dim=16", "head.clf.dim=16", "head.clf.row_dropout=0", "optim.warmup=0"]
    config = resolve([*small, *overrides], REGISTRY)
    return Trainer(config, open_dataset("tiny", "title", REGISTRY))


def take_steps(made: Trainer, steps: int) -> list[float]:
    values = []
    for step in range(steps):
        prepared = made.prepare(0, made.rows_N[:48])
        values.append(made.step(step, prepared)["loss"])
    made.model.settle()
    return values


@each_loss
def test_the_closed_form_is_that_of_the_terms_under_every_reduction(name, by_terms):
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(6, 9, dtype=torch.float64), (torch.rand(6, 9) < 0.3).double()
    y_QP[0], y_QP[1] = 0, 1
    ignore_QP, inverse_P = torch.rand(6, 9) < 0.1, 1 + 3 * torch.rand(9, dtype=torch.float64)
    loss = REGISTRY.get("loss", name)()
    for reduction in [REGISTRY.get("reduction", name) for name in REGISTRY.names("reduction")]:
        if loss.kind == "multiclass" and reduction.accepts == "binary":
            continue
        found = []
        for used in (loss, by_terms(loss)):
            leaf_QP = s_QP.clone().requires_grad_()
            objective = Objective([Term(name, 1.0, used, reduction())], temperature=0.5, q2l_share=0.5)
            value = objective(leaf_QP, y_QP, ignore_QP=ignore_QP, inverse_propensity_P=inverse_P)
            found.append((value.detach(), *torch.autograd.grad(value, leaf_QP)))
        assert all(torch.isfinite(x).all() for x in found[0])
        assert found[0][1].any()
        if reduction is not Pol:  # which draws, in another order
            torch.testing.assert_close(found[0], found[1])


@each_loss
def test_training_lowers_it(name):
    values = take_steps(make_trainer(f"loss.clf={name}"), 8)
    assert values[-1] < values[0]


@pytest.mark.parametrize("name", BINARY)
def test_binary_losses_stream_over_all_labels_to_the_same_weights(name, monkeypatch):
    monkeypatch.setattr(xmclab.objectives.engine, "CELLS_KEPT", 0)
    monkeypatch.setattr(xmclab.objectives.engine, "CELLS_OF_BLOCK", 48 * 30)  # several blocks
    options = ["head.de=none", f"loss.clf={name}", "reduction.clf=ova", "optim.clip=0"]
    streaming = make_trainer(*options)
    assert streaming.streaming == {"clf"}
    monkeypatch.setattr(xmclab.training.streaming, "streams", lambda *_: False)
    plain = make_trainer(*options)
    for made in (streaming, plain):
        made.model.double()
    assert take_steps(streaming, 2) == pytest.approx(take_steps(plain, 2), rel=1e-6)
    for a, b in zip(streaming.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@each_loss
def test_a_step_leaves_no_tensor_behind_on_the_cpu(name, monkeypatch):
    """On the `meta` device any operation that mixes in a tensor of the CPU raises."""
    monkeypatch.setattr("xmclab.training.trainer.pick_device", torch.device)  # users cannot choose it
    made = make_trainer("device=meta", f"loss.clf={name}")
    prepared = made.prepare(0, made.rows_N[:48])
    loss, values = made.backward(0, prepared)
    assert {tensor.device.type for tensor in (loss, *values.values())} == {"meta"}
