"""Text and row of a label: against double loops, in training, and in runs, exports and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.model.tables import RowOptimizer
from xmclab.runs.store import Labels
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor
from xmclab_systems.label_residual import LabelResidual

WIDTH, DIM, L = 6, 4, 7
TEXTS = ["a database for the web", "music player", "perl library"]
X = torch.randn(L, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IDS = torch.arange(L)


def made(**options: Any) -> LabelResidual:
    torch.manual_seed(1)
    head = LabelResidual(**{"dim": DIM, "dropout": 0.0, "rows": "normal", "rows_std": 0.5, **options})
    head.build(WIDTH, L)
    return head.double()


def unit(v: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(a * a for a in v))
    return [a / length for a in v]


def text_of(head: LabelResidual, x_D: Tensor) -> list[float]:
    weight, bias = head.g1[0].weight.tolist(), head.g1[0].bias.tolist()
    sums = [math.fsum(w * x for w, x in zip(row, x_D.tolist(), strict=True)) for row in weight]
    return [math.tanh(s + b) for s, b in zip(sums, bias, strict=True)]


@pytest.mark.parametrize("unit_texts", [True, False])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_label_is_its_text_and_its_row(unit_texts: bool, normalise: bool) -> None:
    head = made(unit_texts=unit_texts, normalise=normalise)
    rows = head.own_rows.weight.tolist()
    chosen = [5, 0, 3]
    expected, queries = [], []
    for label in chosen:
        text = text_of(head, X[label])
        queries.append(unit(text) if normalise else text)
        text = unit(text) if unit_texts else text
        total = [t + r for t, r in zip(text, rows[label], strict=True)]
        expected.append(unit(total) if normalise else total)
    found = head.labels(X[chosen], torch.tensor(chosen))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        head.queries(X[chosen]), torch.tensor(queries, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


def test_rows_start_from_zero_and_leave_a_dual_encoder() -> None:
    head = made(rows="zeros")
    assert not head.own_rows.weight.any()
    torch.testing.assert_close(head.labels(X, IDS), head.queries(X))


def test_only_rows_of_the_pool_move() -> None:
    head, pool = made(), torch.tensor([1, 4, 6])
    before, optimizer = head.own_rows.weight.detach().clone(), RowOptimizer([head.own_rows])
    (head.queries(X[:2]) @ head.labels(X[pool], pool).T).square().sum().backward()
    optimizer.step()
    moved = (head.own_rows.weight != before).any(dim=1)
    assert moved.nonzero().flatten().tolist() == pool.tolist()


def test_new_labels_are_their_texts_alone() -> None:
    head = made()
    found = head.search_labels(X, IDS + L)
    torch.testing.assert_close(found, head.search_queries(X))
    assert not torch.allclose(found, head.search_labels(X, IDS))


def test_the_sum_of_text_and_row_is_searched() -> None:
    with pytest.raises(ConfigError, match=r"project_in=training: rows are added to projected texts"):
        made(project_in="training")


@pytest.mark.parametrize("slot", ["de", "clf"])
def test_runs_and_exports_rank_alike_with_new_labels_too(train: Callable[..., Path], tmp_path: Path, slot: str) -> None:
    other = "clf" if slot == "de" else "de"
    options = ["dim=16", "row_lr=0.05", "table=dense_adamw"]
    run = train(
        tmp_path / "run",
        f"head.{slot}=label_residual",
        *(f"head.{slot}.{option}" for option in options),
        f"head.{other}.dim=8",
    )
    answers = both(run, tmp_path / "export")
    predictor = answers[0]
    rows_LD = predictor.model.get_parameter(f"heads.{slot}.own_rows.weight")
    assert rows_LD.any(dim=1).float().mean() > 0.5  # of labels that were in a pool
    z_LD = predictor.space.vectors(slot)
    tokens = predictor.model.encoder.tokenise(predictor.labels.texts)
    texts_LD = predictor.model.label_vectors(tokens, 64, [slot], new=True)[slot]
    sums_LD = texts_LD.double() + rows_LD.double()
    torch.testing.assert_close(z_LD.double(), sums_LD / sums_LD.norm(dim=1, keepdim=True), rtol=1e-5, atol=1e-6)
    assert_alike(answers, f"{slot}", len(z_LD))


def both(run: Path, to: Path) -> list[Any]:
    """What answers from a run and from its export."""
    registry = default_registry()
    write_export(open_predictor(run, registry, "cpu"), run, to, None)
    return [open_predictor(folder, registry, "cpu") for folder in (run, to)]


def assert_alike(answers: list[Any], search: str, labels: int) -> None:
    """The same scores, and again after a label was added: that of its text."""

    def scores() -> list[NDArray[np.float32]]:
        return [answering.rank(TEXTS, labels + 1, search).scores_NK for answering in answers]

    np.testing.assert_allclose(*scores(), atol=1e-6)
    if search != "clf":
        for answering in answers:
            answering.add_labels(Labels(["new"], ["music player"]))
        np.testing.assert_allclose(*scores(), atol=1e-6)
        added = answers[1].rank(TEXTS[1:2], labels + 1, search)
        (place,) = np.flatnonzero(added.ids_NK[0] == labels)
        tokens = [answers[1].model.encoder.tokenise(["music player"])] * 2
        query = answers[1].model.query_vectors(tokens[0], 1, [search])[search]
        label = answers[1].model.label_vectors(tokens[1], 1, [search], new=True)[search]
        assert added.scores_NK[0, place] == pytest.approx(float((query @ label.T).item()), abs=1e-6)
