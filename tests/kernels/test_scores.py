"""None"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

import xmclab
from xmclab.kernels import dispatch as accelerator
from xmclab.kernels import scores as fused
from xmclab.kernels import scores_torch as fused_torch
from xmclab.objectives import engine as closed_form
from xmclab.objectives import objective as objectives
from xmclab.objectives.truth import Truth

INF = math.inf
SCORES = {"near": 5.0, "rows of either kind": 25.0, "far apart": 300.0, "huge": 1e30}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several slices and two threads for a small matrix."""
    monkeypatch.setattr(fused, "CELLS_OF_SLICE", 3 * 41)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


by_torch = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch needs a C++ compiler")


@pytest.fixture(params=[fused, pytest.param(fused_torch, marks=by_torch)], ids=["numba", "torch"])
def passes(request: pytest.FixtureRequest) -> ModuleType:
    """Passes compiled by one or the other."""
    module: ModuleType = request.param
    return module


def scores(spread: float) -> Tensor:
    """[17, 41] with absent candidates, an anchor of either direction and a slice that have nothing else."""
    s_BP = spread * torch.randn(17, 41, generator=torch.Generator().manual_seed(0))
    s_BP[torch.rand(17, 41, generator=torch.Generator().manual_seed(1)) < 0.2] = -INF
    s_BP[5], s_BP[:, 7], s_BP[9:12] = -INF, -INF, -INF
    return s_BP


@pytest.mark.parametrize("spread", SCORES.values(), ids=SCORES)
def test_log_sums(passes: ModuleType, spread: float) -> None:
    s_BP = scores(spread)
    found = passes.log_sums(s_BP)[:2]
    for log_sum, dim in zip(found, (1, 0), strict=True):
        torch.testing.assert_close(log_sum, s_BP.double().logsumexp(dim=dim).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", SCORES.values(), ids=SCORES)
def test_rows_near_0_are_told_apart(spread: float) -> None:
    s_BP = scores(spread)
    assert fused.log_sums(s_BP)[2].tolist() == [bool((row_P[row_P > -INF].abs() <= 60).all()) for row_P in s_BP]


def test_there_are_rows_of_either_kind() -> None:
    assert len(fused.log_sums(scores(SCORES["rows of either kind"]))[2].unique()) == 2


@pytest.mark.parametrize("spread", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("weight", [None, 0.0, 0.3])
def test_weights_of_both_directions(passes: ModuleType, spread: float, weight: float | None) -> None:
    """And the slope of log(1 + exp s) beside them, with its sum."""
    s_BP = scores(spread)
    log_sum_B, log_sum_P = (s_BP.double().logsumexp(dim=dim) for dim in (1, 0))
    slope_B, slope_P = (0.1 + torch.rand(n, dtype=torch.float64) for n in s_BP.shape)
    expected = slope_B[:, None] * (s_BP - log_sum_B[:, None]).exp() + slope_P * (s_BP - log_sum_P).exp()
    slope_B[5] = slope_P[7] = 0  # no negatives, no slope
    slope_B[9:12] = 0
    expected = expected.nan_to_num(0) + (weight or 0) * s_BP.double().sigmoid()
    found, near_B = s_BP.clone(), passes.log_sums(s_BP)[2]
    value = passes.weigh_(
        found, log_sum_B.float(), slope_B.float(), log_sum_P.float(), slope_P.float(), near_B, softplus=weight
    )
    # An error of the log-sum-exp in the last digit of a large number is one of the exponential.
    off = 4e-7 * max(1.0, float(log_sum_P[log_sum_P.isfinite()].abs().max()))
    torch.testing.assert_close(found.double(), expected, rtol=min(off, 1), atol=1e-7)
    sum_of_cells = softplus(s_BP.double(), threshold=50).sum() if weight is not None else torch.zeros(())
    torch.testing.assert_close(value.double(), sum_of_cells.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("spread", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_rows_in_blocks(passes: ModuleType, spread: float, scale: float) -> None:
    s_QL = scores(spread)
    top_Q, sum_Q = torch.full((17,), torch.finfo().min), torch.zeros(17)
    for s_QB in s_QL.split(10, dim=1):
        passes.add_row_sums(s_QB.contiguous(), scale, top_Q, sum_Q)
    expected = (scale * s_QL.double()).logsumexp(dim=1)
    torch.testing.assert_close(top_Q + sum_Q.log(), expected.float(), rtol=1e-6, atol=1e-6)

    found, log_sum_Q, slope_Q = s_QL.clone(), top_Q + sum_Q.log(), torch.rand(17)
    passes.weigh_rows_(found, scale, log_sum_Q, slope_Q)
    shift_Q1 = log_sum_Q.clamp(min=torch.finfo().min)[:, None].double()
    expected_QL = slope_Q[:, None] * (scale * s_QL.double() - shift_Q1).exp()
    torch.testing.assert_close(found.double(), expected_QL, rtol=4e-7 * max(1.0, 4 * spread), atol=1e-7)


@pytest.mark.parametrize("spread", SCORES.values(), ids=SCORES)
def test_softplus(passes: ModuleType, spread: float) -> None:
    s_QP = scores(spread)
    slope_QP = s_QP.clone()
    value = passes.softplus_to_grad_(slope_QP)
    torch.testing.assert_close(value.double(), softplus(s_QP.double(), threshold=50).sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(slope_QP, s_QP.double().sigmoid().float(), rtol=3e-7, atol=1e-37)


def test_exponentials_and_logarithms_to_the_last_digits(passes: ModuleType) -> None:
    s_1P = torch.linspace(-86, 86, 100_003)[None]
    value = passes.softplus_to_grad_(s_1P[:, :1].clone())
    torch.testing.assert_close(value.double(), s_1P[0, 0].double().exp().log1p(), rtol=3e-7, atol=0)
    found = s_1P.clamp(max=0).clone()
    passes.weigh_rows_(found, 1.0, torch.zeros(1), torch.ones(1))
    torch.testing.assert_close(found.double(), s_1P.clamp(max=0).double().exp(), rtol=1.5e-7, atol=0)


@pytest.mark.parametrize("bad", [math.nan, INF])
def test_what_is_not_finite_is_not_hidden(passes: ModuleType, bad: float) -> None:
    s_BP = scores(5.0)
    s_BP[3, 4] = bad
    log_sum_B, log_sum_P, _ = passes.log_sums(s_BP)
    assert not log_sum_B[3] < INF
    assert not log_sum_P[4] < INF
    assert log_sum_B[0] < INF
    top_Q, sum_Q = torch.full((17,), torch.finfo().min), torch.zeros(17)
    passes.add_row_sums(s_BP, 1.0, top_Q, sum_Q)
    assert not (top_Q + sum_Q.log())[3] < INF
    assert not passes.softplus_to_grad_(s_BP) < INF
    assert math.isnan(s_BP[3, 4]) or bad == INF


def test_sums_do_not_depend_on_the_threads() -> None:
    s_BP = scores(5.0)
    in_two = [*fused.log_sums(s_BP), fused.softplus_to_grad_(s_BP.clone())]
    torch.set_num_threads(1)
    in_one = [*fused.log_sums(s_BP), fused.softplus_to_grad_(s_BP.clone())]
    assert all(torch.equal(a, b) for a, b in zip(in_one, in_two, strict=True))


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("expression", ["ds", "supcon", "bce", "ds+0.3*bce", "ds(temperature=0.5)+bce"])
@pytest.mark.parametrize("norm", [1.0, 40.0])
def test_objectives_are_those_of_float64(
    monkeypatch: pytest.MonkeyPatch, passes: ModuleType, expression: str, norm: float, blocks: bool
) -> None:
    """Value and gradients through the compiled passes, with ignored pairs, beside the plain ones in float64."""
    monkeypatch.setattr(accelerator, "WORTH_LOADING", 0 if passes is fused else 1 << 62)
    used = []
    monkeypatch.setattr(closed_form, "fused_for", lambda x: used.append(x) or accelerator.fused_for(x))
    if blocks:
        monkeypatch.setattr(closed_form, "CELLS_KEPT", 0)
        monkeypatch.setattr(closed_form, "CELLS_OF_BLOCK", 5 * 41)
    generator = torch.Generator().manual_seed(0)
    q_QD, z_PD = (normalize(torch.randn(n, 8, generator=generator), dim=1) for n in (17, 41))
    truth = Truth.of_matrix(*(torch.rand(17, 41, generator=generator) < share for share in (0.1, 0.2)))
    objective = xmclab.objective(expression, temperature=0.05, symmetric=True)

    def outcome(dtype: torch.dtype) -> list[Tensor]:
        q, z = (norm * q_QD).to(dtype).requires_grad_(), z_PD.to(dtype).requires_grad_()
        value = objective.evaluate_vectors(q, z, truth).total
        return [value.detach(), *torch.autograd.grad(value, (q, z))]

    expected_outcome = outcome(torch.float64)
    monkeypatch.setattr(objectives, "_largest", None)  # compiled passes need no bound, so none is measured
    with accelerator.compiled_by_torch():
        found_outcome = outcome(torch.float32)
        assert accelerator.fused_for(used[-1]) is passes
    for found, expected in zip(found_outcome, expected_outcome, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-4 if norm > 1 else 2e-5, atol=1e-6)
