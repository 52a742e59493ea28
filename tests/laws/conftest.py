"""The objective written down naively: Python floats, a loop over every anchor and every candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from xmclab.objectives import engine


@dataclass
class Problem:
    """A random batch; targets, ignored and drawn pairs and label weights as an objective takes them."""

    s_QP: Tensor
    y_QP: Tensor
    ignore_QP: Tensor
    label_weight_P: Tensor
    drawn_QP: Tensor


def random_problem(seed: int, soft: bool = False) -> Problem:
    """Up to 5 queries and 6 labels; some anchors have no positive, some only positives."""
    generator = torch.Generator().manual_seed(seed)
    queries, labels = (int(torch.randint(1, high, (), generator=generator)) for high in (6, 7))

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    y_QP = (uniform(queries, labels) < 0.45).double()
    y_QP[0] = 1
    if soft:
        y_QP = y_QP * uniform(queries, labels)
    s_QP = 3 * torch.randn(queries, labels, generator=generator, dtype=torch.float64)
    ignore_QP, label_weight_P = uniform(queries, labels) < 0.2, 3 * uniform(labels)
    return Problem(s_QP, y_QP, ignore_QP, label_weight_P, uniform(queries, labels) < 0.5)


def log_sum_exp(values: list[float]) -> float:
    return math.log(sum(map(math.exp, values))) if values else -math.inf


def pair(loss: str, p: int, scores: dict[int, float], targets: dict[int, float]) -> float:
    if loss == "bce":
        return math.log1p(math.exp(scores[p])) - targets[p] * scores[p]
    rivals = [s for n, s in scores.items() if loss != "ds" or targets[n] == 0 or n == p]
    return log_sum_exp(rivals) - scores[p]


def naive_value(
    loss: str,
    reduction: str,
    s_QP: Tensor,
    y_QP: Tensor,
    ignore_QP: Tensor | None = None,
    label_weight_P: Tensor | None = None,
    labels_are_rows: bool = False,
    drawn_QP: Tensor | None = None,
) -> float:
    """One term in one direction; rows are anchors. With `drawn_QP`, only these positives count."""
    total, anchors, cells = 0.0, 0, 0
    for i in range(s_QP.shape[0]):
        present = [j for j in range(s_QP.shape[1]) if ignore_QP is None or not ignore_QP[i, j]]
        scores = {j: float(s_QP[i, j]) for j in present}
        targets = {j: float(y_QP[i, j]) for j in present}
        positives = [j for j in present if targets[j] > 0]
        if reduction == "ova_n":
            targets = {j: y / max(len(positives), 1) for j, y in targets.items()}
        counting = [j for j in positives if drawn_QP is None or drawn_QP[i, j]]
        anchors += bool(counting)
        cells += len(present)
        for j in present if loss == "bce" else counting:
            weight = 1.0
            if loss != "bce" and reduction == "pal":
                weight = targets[j]
            elif loss != "bce" and reduction in ("pal_n", "psl"):
                weight = targets[j] / sum(targets[k] for k in counting)
            if label_weight_P is not None:
                weight *= float(label_weight_P[i if labels_are_rows else j])
            total += weight * pair(loss, j, scores, targets)
    return total / max(cells if loss == "bce" else anchors, 1)


@pytest.fixture
def naive() -> Callable[..., float]:
    return naive_value


@pytest.fixture
def problem() -> Callable[..., Problem]:
    return random_problem


@pytest.fixture(scope="module", params=["bounded scores", "blocks of any scores"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """A way through the closed forms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "NEAR", math.inf)
        if request.param == "blocks of any scores":
            for name, value in {"NEAR": -1.0, "CELLS_KEPT": 0, "CELLS_OF_BLOCK": 12}.items():
                patch.setattr(engine, name, value)
            patch.setattr(engine, "CELLS_OF_SLICE", 6)
        yield
