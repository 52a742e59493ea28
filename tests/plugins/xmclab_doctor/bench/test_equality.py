"""Each comparison is made with something broken on purpose, and says so."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus as softplus_of

from xmclab.api import Block, Kernels, option
from xmclab.host.registry import default_registry
from xmclab.kernels import dispatch, tables
from xmclab.model.encoders import packed
from xmclab.objectives import engine
from xmclab.plan.indexes.exact import Exact
from xmclab.training.encoding import ChunkedEncoding
from xmclab.training.streaming import TableScores
from xmclab.training.trainer import Trainer
from xmclab_doctor.bench import equality, synthetic
from xmclab_doctor.bench.equality import Check, Steps, Worst, compared, difference, loss_checks, search_check

CPU = torch.device("cpu")


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_every_loss_is_compared_under_every_reduction_that_takes_it() -> None:
    names = [name for name, _ in equality.objectives()]
    assert {"ds, pol, q2l", "ds, pal_n, l2q", "bce, ova, cells", "triplet, psl, q2l"} <= set(names)
    assert not any(name.startswith("ds, ova") for name in names)
    found = by_name(loss_checks(CPU, half=False))
    assert [check.passed for check in found.values()] == [True, True, True, None]


def test_a_divisor_that_is_off_by_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = engine.divisor
    monkeypatch.setattr(engine, "divisor", lambda *given: right(*given) * 1.0001)
    found = by_name(loss_checks(CPU, False, ["ds"]))
    assert [check.passed for check in found.values()] == [False, False, False, None]
    assert found["losses in float32"].detail.startswith("ds, ")


def test_a_search_that_drops_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_check(CPU, queries=8, labels=500).passed
    right = Exact.search

    def drops(self: Exact, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        ids_QK, scores_QK = right(self, q_QD, k + 1)
        keep = [column for column in range(k + 1) if column != 3]
        return ids_QK[:, keep], scores_QK[:, keep]

    monkeypatch.setattr(Exact, "search", drops)
    found = search_check(CPU, queries=8, labels=500)
    assert (found.passed, found.detail) == (False, "8 of 8 queries, the first is [0]")


def test_packing_that_counts_a_token_too_many(small_steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    right = packed.pool
    monkeypatch.setattr(packed, "pool", lambda *given: right(*given) * 0.999)
    assert compared("", equality.SINGLE, small_steps._without_dropout).passed is False


def test_chunks_that_are_not_replayed(small_steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_last(self: ChunkedEncoding) -> None:
        if self._kept and self.x_BD.grad is not None:
            self._kept[-1].backward(self.x_BD.grad[-len(self._kept[-1]) :])

    monkeypatch.setattr(ChunkedEncoding, "backward", only_last)
    way = [equality.FLOAT32, "encode.chunk=7"]
    check = compared("", equality.SINGLE, lambda: small_steps.same_gradients(way, [equality.FLOAT32]))
    assert check.passed is False
    assert "encoder.network" in check.detail


def test_a_stream_whose_gradient_is_off(small_steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TableScores.backward
    monkeypatch.setattr(TableScores, "backward", lambda self, block, g_QB: right(self, block, 1.001 * g_QB))
    assert compared("", equality.SINGLE, small_steps._streamed).passed is False


def test_a_kernel_that_updates_too_much(small_steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = tables.add_by_moments
    monkeypatch.setattr(tables, "add_by_moments", lambda *given: (given[0].add_(1e-3), right(*given))[1])
    assert compared("", equality.SINGLE, lambda: small_steps._updated("adamw")).passed is False


def test_training_that_drifts(small_steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Trainer.step

    def drifts(self: Trainer, step: int, prepared: Any) -> Any:
        record = right(self, step, prepared)
        return {**record, "loss": record["loss"] * (1.02 if dispatch.WORTH_LOADING == 0 and step else 1.0)}

    monkeypatch.setattr(Trainer, "step", drifts)
    check = compared("", equality.STEP_BOUND, small_steps._losses)
    assert (check.passed, check.detail.partition(":")[0]) == (False, "step 1")


def test_what_raises_is_a_failure_and_what_is_not_finite_too() -> None:
    def raises() -> tuple[float, str]:
        raise RuntimeError("no kernel image is available\nfor execution")

    check = compared("a", 1.0, raises)
    assert (check.passed, check.detail) == (False, "RuntimeError: no kernel image is available")
    assert compared("a", 1.0, lambda: (float("nan"), "there")).passed is False
    worst = Worst()
    for error in (0.1, float("nan"), 0.2):
        worst.see(error, str(error))
    assert worst.where == "nan"


def test_differences_are_relative_and_shapes_count() -> None:
    assert difference(torch.tensor([2.0, 101.0]), torch.tensor([2.0, 100.0])) == pytest.approx(0.01)
    assert difference(torch.zeros(2), torch.zeros(3)) != 0


def test_kernels_are_on_for_small_inputs_and_restored() -> None:
    before = dispatch.WORTH_A_PASS, dispatch.WORTH_LOADING
    x = torch.zeros(4, 4)
    with equality.kernels(True):
        assert dispatch.large_table(x)
    with equality.kernels(False):
        assert not dispatch.large_matrix(torch.zeros(2048, 1024))
    assert before == (dispatch.WORTH_A_PASS, dispatch.WORTH_LOADING)


@dataclass
class Fused(Kernels):
    """Kernels of a sum over cells, in torch."""

    slope: float = option(1.0, "times what the gradient should be")

    def declines(self, q_QD: Tensor) -> str:
        return "" if q_QD.dtype == torch.float32 else "needs float32"

    def log_sums(self, block: Block, by_label: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        s_QB, s_C = self._scores(block)
        return s_QB.logsumexp(1), s_QB.logsumexp(0), s_C

    def gradient(
        self, block: Block, queries: Any, labels: Any, softplus: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert softplus is not None
        s_QB, s_C = self._scores(block)
        g_QB = softplus * s_QB.sigmoid()
        g_QB += (s_QB - queries[0][:, None]).exp() * queries[1][:, None] + (s_QB - labels[0]).exp() * labels[1]
        return self.slope * g_QB, softplus_of(s_QB).sum(), s_C

    def _scores(self, block: Block) -> tuple[Tensor, Tensor]:
        s_QB, at = block.scale * block.q_QD @ block.z_BD.T, (block.row_C, block.column_C)
        return s_QB.index_put(at, torch.tensor(-torch.inf)), s_QB[at]


@pytest.mark.parametrize(
    ("name", "slope", "passed"), [("fused", 1.0, True), ("off", 1.001, False), ("triton", 1.0, None)]
)
def test_fused_kernels_that_are_off(
    small_steps: Steps, monkeypatch: pytest.MonkeyPatch, name: str, slope: float, passed: bool | None
) -> None:
    registry = default_registry().with_class("kernels", "fused", Fused)
    off = make_dataclass("Off", [("slope", float, option(slope, ""))], bases=(Fused,))
    registry = registry.with_class("kernels", "off", off)
    for module in (equality, synthetic):
        monkeypatch.setattr(module, "default_registry", lambda: registry)
    found = small_steps.fused(name)
    assert found.passed is passed, found
    if passed is None:
        assert found.detail
