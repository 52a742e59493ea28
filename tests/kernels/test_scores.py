"""The passes over negatives: the plain ones in the engine define, and the compiled ones are equal within rounding."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

import xmclab
from xmclab.kernels import dispatch
from xmclab.kernels import scores as loops
from xmclab.objectives import engine
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.truth import Truth

INF = math.inf
SCORES = {"near": 5.0, "rows of either kind": 25.0, "far apart": 300.0, "huge": 1e30}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several slices and two threads for a small matrix."""
    for module in (engine, loops):
        monkeypatch.setattr(module, "CELLS_OF_SLICE", 3 * 41)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["plain", "numba"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(dispatch, "WORTH_A_PASS", 0 if request.param == "numba" else 1 << 62)
    return str(request.param)


def scores(spread: float) -> Tensor:
    """[17, 41] with absent candidates, an anchor of either direction and a slice that have nothing else."""
    s_QB = spread * torch.randn(17, 41, generator=torch.Generator().manual_seed(0))
    s_QB[torch.rand(17, 41, generator=torch.Generator().manual_seed(1)) < 0.2] = -INF
    s_QB[5], s_QB[:, 7], s_QB[9:12] = -INF, -INF, -INF
    return s_QB


def ways_to_say(spread: float) -> list[bool]:
    """What a caller may know about the scores: they are near, or nothing."""
    return [True, False] if spread == SCORES["near"] else [False]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("spread", SCORES.values(), ids=SCORES)
def test_log_sums(spread: float) -> None:
    s_QB = scores(spread)
    for near in ways_to_say(spread):
        for log_sum, dim in zip(engine.log_sums(s_QB, near, True), (1, 0), strict=True):
            assert log_sum is not None
            torch.testing.assert_close(log_sum, s_QB.double().logsumexp(dim=dim).float(), rtol=1e-6, atol=1e-6)
        assert engine.log_sums(s_QB, near, False)[1] is None


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("spread", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("weight", [None, 0.0, 0.3])
@pytest.mark.parametrize("sides", ["rows", "columns", "both", "none"])
def test_weights(spread: float, weight: float | None, sides: str) -> None:
    """Of both directions, and the slope of log(1 + exp s) beside them, with its sum."""
    if sides == "none" and weight is None:
        return
    s_QB = scores(spread)
    log_sum_Q, log_sum_B = (s_QB.double().logsumexp(dim=dim) for dim in (1, 0))
    slope_Q, slope_B = (0.1 + torch.rand(n, dtype=torch.float64) for n in s_QB.shape)
    by_row = (slope_Q[:, None] * (s_QB - log_sum_Q[:, None]).exp()).nan_to_num(0)
    by_column = (slope_B * (s_QB - log_sum_B).exp()).nan_to_num(0)
    expected = (sides in ("rows", "both")) * by_row + (sides in ("columns", "both")) * by_column
    slope_Q[5] = slope_B[7] = 0  # no negatives, no slope
    slope_Q[9:12] = 0
    expected = expected + (weight or 0) * s_QB.double().sigmoid()
    rows = (log_sum_Q.float(), slope_Q.float()) if sides in ("rows", "both") else None
    columns = (log_sum_B.float(), slope_B.float()) if sides in ("columns", "both") else None
    # An error of the log-sum-exp in the last digit of a large number is one of the exponential.
    off = 4e-7 * max(1.0, float(log_sum_B[log_sum_B.isfinite()].abs().max()))
    for near in ways_to_say(spread):
        found = s_QB.clone()
        value = engine.weigh_(found, rows, columns, None if weight is None else torch.tensor(weight), near)
        torch.testing.assert_close(found.double(), expected, rtol=min(off, 1), atol=1e-7)
        sum_of_cells = softplus(s_QB.double(), threshold=50).sum() if weight is not None else torch.zeros(())
        torch.testing.assert_close(value.double(), sum_of_cells.double(), rtol=1e-6, atol=0)


def test_exponentials_and_logarithms_to_the_last_digits(way: str) -> None:
    most = 60 if way == "numba" else 86  # further than that is left to the plain passes
    s_1B = torch.linspace(-most, most, 100_003)[None]
    value = engine.weigh_(s_1B[:, :1].clone(), None, None, torch.ones(()), False)
    torch.testing.assert_close(value.double(), s_1B[0, 0].double().exp().log1p(), rtol=3e-7, atol=0)
    found = s_1B.clamp(max=0).clone()
    engine.weigh_(found, (torch.zeros(1), torch.ones(1)), None, None, False)
    torch.testing.assert_close(found.double(), s_1B.clamp(max=0).double().exp(), rtol=1.5e-7, atol=0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("bad", [math.nan, INF])
def test_what_is_not_finite_is_not_hidden(bad: float) -> None:
    s_QB = scores(5.0)
    s_QB[3, 4] = bad
    log_sum_Q, log_sum_B = engine.log_sums(s_QB, False, True)
    assert not log_sum_Q[3] < INF
    assert log_sum_B is not None
    assert not log_sum_B[4] < INF
    assert log_sum_Q[0] < INF
    assert not engine.weigh_(s_QB, None, None, torch.ones(()), False) < INF
    assert math.isnan(s_QB[3, 4]) or bad == INF


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("expression", ["ds", "supcon", "bce", "ds+0.3*bce", "ds(temperature=0.5)+bce"])
@pytest.mark.parametrize("norm", [1.0, 40.0])
def test_objectives_are_those_of_float64(
    monkeypatch: pytest.MonkeyPatch, way: str, expression: str, norm: float, blocks: bool
) -> None:
    """Value and gradients, with ignored pairs."""
    compiled: list[Any] = []
    real = loops.weigh_
    monkeypatch.setattr(loops, "weigh_", lambda *x: compiled.append(x) or real(*x))
    if blocks:
        monkeypatch.setattr(engine, "CELLS_KEPT", 0)
        monkeypatch.setattr(engine, "CELLS_OF_BLOCK", 5 * 41)
    generator = torch.Generator().manual_seed(0)
    q_QD, z_PD = (normalize(torch.randn(n, 8, generator=generator), dim=1) for n in (17, 41))
    truth = Truth.of_matrix(*(torch.rand(17, 41, generator=generator) < share for share in (0.1, 0.2)))
    objective = partial(evaluate_vectors, xmclab.objective(expression, temperature=0.05, symmetric=True))

    def outcome(dtype: torch.dtype) -> list[Tensor]:
        q, z = (norm * q_QD).to(dtype).requires_grad_(), z_PD.to(dtype).requires_grad_()
        value = objective(q, z, truth).total
        return [value.detach(), *torch.autograd.grad(value, (q, z))]

    expected_outcome = outcome(torch.float64)
    assert not compiled
    found_outcome = outcome(torch.float32)
    assert bool(compiled) is (way == "numba")
    for found, expected in zip(found_outcome, expected_outcome, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-4 if norm > 1 else 2e-5, atol=1e-6)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch needs a C++ compiler")
@pytest.mark.parametrize("near", [True, False])
def test_torch_compiles_the_same(near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, compiled, compile_ = [], [], dispatch._compiled
    monkeypatch.setattr(dispatch, "_compiled", lambda plain: compiled.append(plain.__name__) or compile_(plain))
    for by_torch in (False, True):
        s_QB = scores(SCORES["near"])
        with dispatch.compiled_by_torch(by_torch):
            log_sum_Q, log_sum_B = engine.log_sums(s_QB, near, True)
            assert log_sum_B is not None
            anchored = (log_sum_Q, torch.ones(17)), (log_sum_B, torch.ones(41))
            value = engine.weigh_(s_QB, *anchored, torch.tensor(0.3), near)
        outcomes.append([log_sum_Q, log_sum_B, value, s_QB])
    assert compiled == ["log_sums", "weigh_"]
    torch.testing.assert_close(*outcomes, rtol=2e-6, atol=1e-6)


def test_sums_do_not_depend_on_the_threads() -> None:
    s_QB = 5 * torch.randn(17, 41, generator=torch.Generator().manual_seed(0))
    outcomes = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        log_sum_Q, log_sum_B = loops.log_sums(s_QB, False, True)
        g_QB = s_QB.clone()
        anchored = (log_sum_Q, torch.ones(17)), (log_sum_B, torch.ones(41))
        outcomes.append([log_sum_Q, log_sum_B, loops.weigh_(g_QB, *anchored, torch.ones(()), False), g_QB])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_rows_near_0_are_told_apart() -> None:
    rows = torch.tensor([[1.0, -60.0, 60.0], [1.0, 2.0, -torch.inf], [61.0, 0.0, 0.0], [0.0, -61.0, 0.0]])
    found = [loops._is_near(row.numpy().view("int32")) for row in rows]
    assert found == [True, True, False, False]


def test_scores_far_from_0_are_left_to_the_plain_passes() -> None:
    s_QB = torch.tensor([[1.0, -61.0], [2.0, 3.0]])
    before = s_QB.clone()
    assert loops.log_sums(s_QB, False, True) is NotImplemented
    assert loops.weigh_(s_QB, (torch.zeros(2), torch.ones(2)), None, None, False) is NotImplemented
    assert torch.equal(s_QB, before)
