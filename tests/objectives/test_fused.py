"""The engine over kernels that never write scores: values and gradients are those of the plain engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus as softplus_of

import xmclab
from xmclab.api import Block, Kernels
from xmclab.objectives.engine import Engine
from xmclab.objectives.fused import FusedEngine, unfused
from xmclab.objectives.objective import Objective
from xmclab.objectives.scores import Matrix, Scores
from xmclab.objectives.truth import Truth

QUERIES, LABELS, WIDTH = 7, 23, 5
Found = tuple[dict[str, float], dict[str, Tensor]]


@dataclass
class InWords(Kernels):
    """What the interface asks for, word by word, with whole matrices."""

    def declines(self, q_QD: Tensor) -> str:
        return ""

    def log_sums(self, block: Block, by_label: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        s_QB, s_C = self._negatives(block)
        return s_QB.logsumexp(1), s_QB.logsumexp(0) if by_label else None, s_C

    def gradient(
        self,
        block: Block,
        queries: tuple[Tensor, Tensor] | None,
        labels: tuple[Tensor, Tensor] | None,
        softplus: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        s_QB, s_C = self._negatives(block)
        g_QB, value, least = torch.zeros_like(s_QB), s_QB.new_zeros(()), torch.finfo(s_QB.dtype).min
        if queries:
            g_QB += queries[1][:, None] * (s_QB - queries[0].clamp(min=least)[:, None]).exp()
        if labels:
            g_QB += labels[1] * (s_QB - labels[0].clamp(min=least)).exp()
        if softplus is not None:
            g_QB += softplus * s_QB.sigmoid()
            value = softplus_of(s_QB, threshold=50).sum()
        return g_QB.to(block.q_QD.dtype), value, s_C

    def _negatives(self, block: Block) -> tuple[Tensor, Tensor]:
        s_QB = block.scale * block.q_QD @ block.z_BD.T
        within_C = (block.column_C >= 0) & (block.column_C < len(block.z_BD))
        at = block.row_C[within_C], block.column_C[within_C]
        s_C = s_QB.new_full(block.row_C.shape, 1e6)  # of cells elsewhere: nobody may use it
        s_C[within_C] = s_QB[at]
        return s_QB.index_put(at, torch.tensor(-torch.inf, dtype=s_QB.dtype)), s_C


class Products(Scores):
    """Scores of vectors, with the gradient of every block."""

    def __init__(self, block: int | None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.q_QD = self.like = torch.randn(QUERIES, WIDTH, dtype=torch.double, generator=generator)
        self.z_LD = torch.randn(LABELS, WIDTH, dtype=torch.double, generator=generator)
        self.labels, self.block, self.found = range(LABELS), block, {}

    def write(self, block: slice, scale: float, out_QB: Tensor) -> None:
        torch.mul(self.q_QD @ self.z_LD[block].T, scale, out=out_QB)

    def operands(self, block: slice) -> tuple[Tensor, Tensor]:
        return self.q_QD, self.z_LD[block]

    def backward(self, block: slice, g_QB: Tensor) -> None:
        self.found[block.start] = g_QB.clone()


def truth() -> Truth:
    generator = torch.Generator().manual_seed(1)
    y_QP = (torch.rand(QUERIES, LABELS, generator=generator) < 0.2).double()
    y_QP[2], y_QP[:, 4] = 1, 1  # a query and a label without negatives
    y_QP[:, 10:15] = 0  # a block without positives
    ignored_QP = torch.rand(QUERIES, LABELS, generator=generator) < 0.1
    ignored_QP[:, 4] = False
    return Truth.of_matrix(y_QP, ignored_QP)


def found_by(objective: Objective, block: int | None, weight_L: Tensor | None, kernels: Kernels | None) -> Found:
    scores = Products(block)
    given: Any = scores, truth(), objective.directions, weight_L, 0.7
    engine = FusedEngine(kernels, *given) if kernels else Engine(*given)
    engine.observe()
    engine.backward()
    values = {name: value.item() for name, value in engine.evaluation.values.items()}
    return values, {str(start): g_QB for start, g_QB in scores.found.items()}


@pytest.mark.parametrize("block", [5, None])
@pytest.mark.parametrize(
    ("expression", "reduction", "q2l_share"),
    [
        ("ds", "pal_n", 1.0),
        ("ds(temperature=0.4)", "pal", 0.5),
        ("supcon", "pal_n", 0.0),
        ("bce", "ova", 1.0),
        ("0.7*ds+0.3*bce", "pal_n", 0.4),
    ],
)
def test_it_finds_what_the_plain_engine_finds(
    block: int | None, expression: str, reduction: str, q2l_share: float
) -> None:
    objective = xmclab.objective(expression, reduction, q2l_share=q2l_share)
    weight_L = None if "bce" in expression else torch.rand(LABELS, dtype=torch.double)
    values, gradients = found_by(objective, block, weight_L, None)
    fused_values, fused_gradients = found_by(objective, block, weight_L, InWords())
    assert fused_values == pytest.approx(values, rel=1e-12)
    assert fused_gradients.keys() == gradients.keys()
    for start, g_QB in gradients.items():
        torch.testing.assert_close(fused_gradients[start], g_QB, rtol=1e-10, atol=1e-14)


def test_scores_have_no_memory() -> None:
    given: Any = Products(5), truth(), xmclab.objective("ds", "pal_n").directions
    assert Engine(*given).memory.numel() == 5 * QUERIES + 1
    assert FusedEngine(InWords(), *given).memory.numel() == 1


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("ds+bce", ""),
        ("ds(temperature=1)+supcon(temperature=2)", "its losses have several temperatures"),
        ("ds+squared_hinge", "the negatives of loss 'squared_hinge' do not cost log(1 + exp s)"),
    ],
)
def test_it_says_which_losses_are_left_to_torch(expression: str, reason: str) -> None:
    assert unfused(xmclab.objective(expression, "pal_n").directions) == reason


def test_scores_that_are_given_have_no_operands() -> None:
    with pytest.raises(NotImplementedError, match="Matrix has no vectors"):
        Matrix(torch.zeros(2, 3)).operands(slice(0, 3))
