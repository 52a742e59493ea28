"""Anchors without positives or negatives, ignored pairs, zero weights, extreme scores and low precision."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import xmclab
from xmclab.objectives.objective import Objective

MULTICLASS = itertools.product(("ds", "supcon", "softmax"), ("pol", "pal", "pal_n", "psl"))
PAIRINGS = [*MULTICLASS, ("bce", "ova"), ("bce", "ova_n"), ("bce", "psl")]
each_pairing = pytest.mark.parametrize(("loss", "reduction"), PAIRINGS)


def value_and_gradient(objective: Objective, s_QP: Tensor, y_QP: Tensor, **more: Tensor) -> tuple[Tensor, Tensor]:
    s_QP = s_QP.detach().clone().requires_grad_()
    torch.manual_seed(0)
    value = objective(s_QP, y_QP, **more)
    (gradient_QP,) = torch.autograd.grad(value, s_QP)
    return value.detach(), gradient_QP


@pytest.mark.parametrize("loss", ["ds", "supcon", "softmax"])
@pytest.mark.parametrize("reduction", ["pol", "pal", "pal_n", "psl"])
def test_an_anchor_without_positives_gives_no_term(loss, reduction):
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(3, 4), torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]])
    objective = xmclab.objective(loss, reduction=reduction)
    value, gradient_QP = value_and_gradient(objective, s_QP, y_QP)
    assert (gradient_QP[1] == 0).all()
    assert (gradient_QP[[0, 2]] != 0).any()
    if reduction != "pol":
        torch.testing.assert_close(value, objective(s_QP[[0, 2]], y_QP[[0, 2]]))


@each_pairing
def test_nothing_but_empty_anchors_gives_zero_or_finite(loss, reduction):
    objective = xmclab.objective(loss, reduction=reduction, symmetric=True)
    value, gradient_QP = value_and_gradient(objective, torch.randn(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert torch.isfinite(value)
    assert torch.isfinite(gradient_QP).all()
    if loss != "bce":
        assert value == 0
        assert (gradient_QP == 0).all()


@pytest.mark.parametrize("reduction", ["pol", "pal", "pal_n", "psl"])
def test_ds_of_positives_only_is_zero_with_gradient_zero(reduction):
    objective = xmclab.objective("ds", reduction=reduction, symmetric=True)
    value, gradient_QP = value_and_gradient(objective, torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool))
    assert value == 0
    assert (gradient_QP == 0).all()


@each_pairing
def test_one_query_and_one_label(loss, reduction):
    for positive in (False, True):
        objective = xmclab.objective(loss, reduction=reduction, symmetric=True)
        value, gradient_QP = value_and_gradient(objective, torch.tensor([[2.0]]), torch.tensor([[positive]]))
        if loss == "bce":
            assert float(value) == pytest.approx(math.log1p(math.exp(-2.0 if positive else 2.0)), rel=1e-6)
        else:
            assert value == 0
            assert gradient_QP == 0


@each_pairing
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), ignoring=st.booleans())
def test_huge_scores_stay_finite(loss, reduction, seed, ignoring):
    generator = torch.Generator().manual_seed(seed)
    s_QP = torch.tensor([-1e4, 0.0, 1e4])[torch.randint(0, 3, (4, 5), generator=generator)]
    y_QP = torch.rand(4, 5, generator=generator) < 0.5
    ignore_QP = (torch.rand(4, 5, generator=generator) < 0.3) & torch.tensor(ignoring)
    objective = xmclab.objective(loss, reduction=reduction, temperature=1e-3, symmetric=True)
    value, gradient_QP = value_and_gradient(objective, s_QP, y_QP, ignore_QP=ignore_QP)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient_QP).all()
    assert (gradient_QP[ignore_QP] == 0).all()


@pytest.mark.parametrize("expression", ["ds", "supcon", "bce", "ova_n(bce)", "0.7*ds+0.3*bce"])
def test_gradcheck_with_ignored_pairs_weights_and_both_directions(expression):
    torch.manual_seed(1)
    s_QP, y_QP = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.rand(4, 5) * (torch.rand(4, 5) < 0.5)
    ignore_QP, label_weight_P = torch.rand(4, 5) < 0.2, torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0])
    objective = xmclab.objective(expression, temperature=0.5, symmetric=True)
    assert torch.autograd.gradcheck(
        lambda s: objective(s, y_QP, ignore_QP=ignore_QP, label_weight_P=label_weight_P), s_QP
    )


@pytest.mark.parametrize(("loss", "reduction"), [pair for pair in PAIRINGS if pair[1] != "pol"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_ignoring_a_label_everywhere_is_removing_it(loss, reduction, problem, seed):
    p = problem(seed)
    assume(p.s_QP.shape[1] > 1)
    y_QP, ignore_QP = p.y_QP, torch.zeros_like(p.y_QP, dtype=torch.bool)
    ignore_QP[:, 0] = True
    s_QP = p.s_QP.masked_fill(ignore_QP, math.nan)
    objective = xmclab.objective(loss, reduction=reduction, symmetric=True)
    value, gradient_QP = value_and_gradient(objective, s_QP, y_QP, ignore_QP=ignore_QP)
    expected, expected_gradient_QP = value_and_gradient(objective, s_QP[:, 1:], y_QP[:, 1:])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient_QP[:, 1:], expected_gradient_QP)
    assert (gradient_QP[:, 0] == 0).all()


@pytest.mark.parametrize("loss", ["ds", "supcon", "softmax"])
def test_an_ignored_candidate_is_absent_however_low_the_others_are(loss):
    objective = xmclab.objective(loss, symmetric=True)
    s_QP = torch.tensor([[0.0, 1.0, 2.0], [1.0, -1.0, 0.5]], dtype=torch.float64)
    y_QP, ignore_QP = torch.tensor([[1, 0, 0], [0, 1, 0]]).bool(), torch.tensor([[0, 0, 1], [1, 0, 0]]).bool()
    low = objective(s_QP - 1e6, y_QP, ignore_QP=ignore_QP)
    torch.testing.assert_close(low, objective(s_QP, y_QP, ignore_QP=ignore_QP), rtol=0, atol=1e-8)


@each_pairing
def test_a_row_that_is_ignored_or_positive_everywhere_is_harmless(loss, reduction):
    s_QP = torch.randn(3, 3)
    y_QP = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0]]).bool()
    ignore_QP = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 0, 0]]).bool()
    objective = xmclab.objective(loss, reduction=reduction, symmetric=True)
    value, gradient_QP = value_and_gradient(objective, s_QP, y_QP, ignore_QP=ignore_QP)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient_QP).all()
    assert (gradient_QP[ignore_QP] == 0).all()


LOW_PRECISION = """
import torch, xmclab
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.truth import Truth
torch.set_num_threads(1)
torch.manual_seed(0)
for dtype in (torch.bfloat16, torch.float16):
    for loss, reduction in PAIRINGS:
        x_QD, z_PD = (torch.randn(n, 8, dtype=dtype, requires_grad=True) for n in (5, 7))
        s_QP, y_QP = x_QD @ z_PD.T, torch.rand(5, 7) < 0.4
        objective = xmclab.objective(loss, reduction=reduction, temperature=0.01, symmetric=True)
        torch.manual_seed(1)
        value = objective(s_QP, y_QP)
        torch.manual_seed(1)
        assert torch.equal(value, objective(s_QP.float(), y_QP)), (loss, reduction)
        value.backward()
        assert value.dtype == torch.float32 and x_QD.grad.dtype == dtype
        assert torch.isfinite(value) and torch.isfinite(x_QD.grad).all() and torch.isfinite(z_PD.grad).all()
        with torch.autocast("cpu", dtype=dtype):
            torch.manual_seed(1)
            assert torch.equal(objective(s_QP, y_QP), value), (loss, reduction)
            torch.manual_seed(1)
            vectors = x_QD.detach().float().requires_grad_(), z_PD.detach().float().requires_grad_()
            found = evaluate_vectors(objective, *vectors, Truth.of_matrix(y_QP)).total
        wide = x_QD.detach().float().requires_grad_(), z_PD.detach().float().requires_grad_()
        torch.manual_seed(1)
        exact = objective(wide[0] @ wide[1].T, y_QP)  # of the same operands: only their scores are not rounded
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)
        found.backward(), exact.backward()
        assert found.dtype == vectors[0].grad.dtype == torch.float32
        for a, b in zip(vectors, wide):  # the gradient of the scores is rounded, as an operand
            assert (a.grad - b.grad).abs().max() <= torch.finfo(dtype).eps * b.grad.abs().max(), (loss, reduction)
print("ok")
"""


def test_low_precision_scores_are_reduced_in_float32():
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    code = LOW_PRECISION.replace("PAIRINGS", repr(PAIRINGS))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr
