"""The engine: closed forms equal autograd, in blocks or whole, from scores or from vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import xmclab
from xmclab.api import Batch
from xmclab.host.compose import build_objective
from xmclab.host.registry import default_registry
from xmclab.objectives import engine
from xmclab.objectives.engine import Engine, Vectors, evaluate_vectors
from xmclab.objectives.expr import parse_expression
from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.truth import Truth

BLOCKS = {"CELLS_KEPT": 0, "CELLS_OF_BLOCK": 14}
WAYS = {
    "bounded": {"NEAR": math.inf},
    "any": {"NEAR": -1.0},
    "bounded in blocks": {"NEAR": math.inf, **BLOCKS},
    "any in blocks": {"NEAR": -1.0, **BLOCKS},
    "bounded on a GPU": {"NEAR": math.inf, "on_cpu": lambda x: False},
    "any on a GPU": {"NEAR": -1.0, "on_cpu": lambda x: False, **BLOCKS},
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """A way through the closed forms, whatever the size of the scores and of their matrix."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(engine, name, value)
    monkeypatch.setattr(engine, "CELLS_OF_SLICE", 7)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("reduction", ["psl", "pol", "pal"])
def test_closed_forms_equal_autograd(batch, reduction, symmetric):
    """The same losses with their closed forms hidden, on soft targets with ignored pairs."""
    s_QP, y_QP = batch
    drawn_QP = torch.eye(5, 7, dtype=torch.bool)  # `pol` has no choice: its picks depend on the shape of the matrix
    y_QP = (y_QP | drawn_QP) * torch.rand(y_QP.shape, dtype=torch.float64)
    ignore_QP = torch.rand(y_QP.shape) < 0.2
    closed = xmclab.objective("ds+0.5*supcon(temperature=0.3)+2*bce", reduction, 0.7, symmetric=symmetric)
    hidden = [
        Term(
            t.name,
            t.weight,
            type(f"Open{t.name}", (type(t.loss),), {"terms": type(t.loss).terms})(t.loss.temperature),
            t.reduction,
        )
        for t in closed.terms
    ]
    opened = Objective(hidden, closed.temperature, closed.q2l_share)
    assert all(term.loss.has_closed_form for term in closed.terms)
    assert not any(term.loss.has_closed_form for term in opened.terms)
    for weight_P in (None, torch.rand(7, dtype=torch.float64)):
        results = []
        for objective in (closed, opened):
            scores = s_QP.clone().requires_grad_()
            torch.manual_seed(3)
            value = objective(scores, y_QP, ignore_QP=ignore_QP, drawn_QP=drawn_QP, label_weight_P=weight_P)
            value.backward()
            results.append((value.detach(), scores.grad))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-12, atol=1e-12)


def vectors(dtype: torch.dtype, queries: int = 5, labels: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    q_QD, z_PD = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (queries, labels))
    return q_QD.to(dtype).requires_grad_(), z_PD.to(dtype).requires_grad_()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("q2l_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "expression", ["ds", "supcon", "bce", "ds+bce", "ds+0.5*supcon(temperature=0.3)+2*bce", "mine"]
)
def test_vectors_give_what_their_scores_give(batch, expression, q2l_share, weighted, only_positives):
    get = {"mine": only_positives}.get
    objective = build_objective(
        parse_expression(expression),
        "psl",
        0.5,
        q2l_share,
        lambda kind, name: get(name) or default_registry().get(kind, name),
    )
    q_QD, z_PD = vectors(torch.float64)
    truth = Truth.of_matrix(batch[1] * torch.rand(5, 7), torch.rand(5, 7) < 0.2)
    weight_P = torch.rand(7) if weighted else None
    found = evaluate_vectors(objective, q_QD, z_PD, truth, weight_P)
    expected = objective.evaluate(q_QD @ z_PD.T, truth, weight_P)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-12, atol=1e-12)
    assert list(found.values) == list(expected.values)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(3 * value.total, (q_QD, z_PD)) for value in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("expression", ["ds", "supcon", "bce", "ds+bce"])
def test_gradients_of_single_precision_are_those_of_double(batch, expression):
    truth, objective = Truth.of_matrix(batch[1]), xmclab.objective(expression, temperature=1 / 18, symmetric=True)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        q_QD, z_PD = (normalize(x.detach(), dim=1).to(dtype).requires_grad_() for x in vectors(torch.float32))
        gradients.append(torch.autograd.grad(evaluate_vectors(objective, q_QD, z_PD, truth).total, (q_QD, z_PD)))
    for single, double in zip(*gradients, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_a_bound_that_is_told_changes_nothing(batch, bound):
    s_QP, y_QP = batch[0].clamp(-1, 1).requires_grad_(), batch[1]
    objective = xmclab.objective("ds+supcon+bce", temperature=0.05, symmetric=True)
    found = objective.evaluate(s_QP, Truth.of_matrix(y_QP), bound=bound).total
    assert found.item() == pytest.approx(objective(s_QP, y_QP).item(), rel=1e-12)


class Sizes(TorchDispatchMode):
    """Notes how many numbers each new piece of memory holds."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        self.made += [
            x.untyped_storage().nbytes() // x.element_size()
            for x in tree_leaves(out)
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in given
        ]
        return out


@pytest.mark.parametrize("bound", [1.0, 1e9])
@pytest.mark.parametrize("expression", ["ds", "supcon", "bce", "ds+bce"])
def test_one_score_matrix_is_made_and_of_a_large_one_blocks_only(monkeypatch, expression, bound):
    monkeypatch.setattr(engine, "CELLS_OF_SLICE", 700)
    q_QD, z_PD = vectors(torch.float32, 60, 70)
    truth = Truth.of_matrix(torch.eye(60, 70))
    objective = xmclab.objective(expression, symmetric=True)
    with Sizes() as whole:
        evaluate_vectors(objective, q_QD, z_PD, truth, bound=bound).total.backward()
    assert [size for size in whole.made if size > 700] == [60 * 70 + 1]
    monkeypatch.setattr(engine, "CELLS_KEPT", 4000)
    monkeypatch.setattr(engine, "CELLS_OF_BLOCK", 1400)
    with Sizes() as blocks:
        evaluate_vectors(objective, q_QD, z_PD, truth, bound=bound).total.backward()
    assert [size for size in blocks.made if size > 700] == [60 * 23 + 1]


def test_a_gpu_gets_the_largest_blocks_that_fit():
    assert engine.block_sizes("cpu") == (1 << 24, 1 << 22)
    assert engine.block_sizes("cuda") == (1 << 27, 1 << 27)
    q_QD, z_PD = torch.empty(1024, 4, device="meta"), torch.empty(300_000, 4, device="meta")
    none = np.zeros(0, dtype=np.int64)
    positives = np.arange(2), np.arange(2), np.ones(2, dtype=np.float32)
    truth = Truth.of_batch(Batch(np.arange(1024), np.arange(300_000), positives, (none, none)), "meta")
    made = Engine(Vectors(q_QD, z_PD), truth, xmclab.objective("bce", "ova").directions)
    assert [block.stop - block.start for block in made.blocks] == [131072, 131072, 37856]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_vectors_have_value_zero(shape):
    q_QD, z_PD = vectors(torch.float32, *shape)
    objective = xmclab.objective("ds+bce", symmetric=True)
    value = evaluate_vectors(objective, q_QD, z_PD, Truth.of_matrix(torch.zeros(shape)))
    value.total.backward()
    assert float(value.total.detach()) == 0.0
    assert not q_QD.grad.any()


class Own(Vectors):
    """The scores of some labels only: those of one process."""

    def __init__(self, q_QD: Tensor, z_PD: Tensor, labels: range) -> None:
        super().__init__(q_QD, z_PD)
        self.labels = labels
        self.dq_QD.zero_()
        self.dz_PD.zero_()

    def backward(self, block: slice, g_QB: Tensor) -> None:
        self.dq_QD.addmm_(g_QB, self.z_PD[block])
        self.dz_PD[block] = g_QB.T @ self.q_QD


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("expression", ["ds", "supcon+bce", "0.7*ds+bce+supcon(temperature=0.3)"])
def test_processes_with_labels_of_their_own_and_an_exchange_are_as_one(batch, expression):
    """Two engines, each with some labels; only their sums of rows and the scores of positives are exchanged."""
    q_QD, z_PD = (x.detach() for x in vectors(torch.float64))
    truth = Truth.of_matrix(batch[1], torch.rand(5, 7) < 0.2)
    objective = xmclab.objective(expression, temperature=0.5, symmetric=True)
    sides = [Own(q_QD, z_PD, labels) for labels in (range(3), range(3, 7))]
    told: list[tuple[Tensor, Tensor]] = []
    for scores in sides:
        Engine(scores, truth, objective.directions, exchange=lambda *own: told.append(own) or own).observe()
    log_sum_GQ, s_E = (torch.stack(x) for x in zip(*told, strict=True))
    assert s_E.shape == (2, len(truth.row_E))
    assert not s_E.prod(dim=0).any()  # a positive belongs to one of them
    values = []
    for scores in sides:
        made = Engine(scores, truth, objective.directions, exchange=lambda *_: (log_sum_GQ.logsumexp(0), s_E.sum(0)))
        made.observe()
        made.backward()
        values.append(made.evaluation.values)
    whole = Vectors(q_QD, z_PD)
    made = Engine(whole, truth, objective.directions)
    made.observe()
    made.backward()
    torch.testing.assert_close(sides[0].dq_QD + sides[1].dq_QD, whole.dq_QD)
    torch.testing.assert_close(sides[0].dz_PD + sides[1].dz_PD, whole.dz_PD)
    for name, value in made.evaluation.values.items():
        parts = [found[name] for found in values]
        torch.testing.assert_close(parts[0] if name.endswith("q2l") else sum(parts), value)  # q2l is known to all
