"""The classifier: queries are projected, labels are rows of a table."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from xmclab.model.heads import classifier
from xmclab.model.heads.classifier import Classifier
from xmclab.model.tables import RowOptimizer

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([3, 0, 2, 9, 1])


def test_classifier_projects_queries_and_looks_labels_up() -> None:
    head = Classifier(dim=6)
    head.build(8, 10)
    head.eval()
    linear = head.g2[0]
    torch.testing.assert_close(head.queries(X), X @ linear.weight.T + linear.bias)
    torch.testing.assert_close(head.labels(None, IDS), head.psi.weight[IDS])
    assert head.psi.weight.shape == (10, 6)
    bound = (6 / (10 + 6)) ** 0.5
    assert head.psi.weight.abs().max() <= bound


def test_classifier_drops_numbers_of_the_looked_up_rows_in_training() -> None:
    head = Classifier(dim=64, row_dropout=0.5)
    head.build(8, 10)
    assert (head.train().labels(None, IDS) == 0).float().mean() > 0.3
    assert (head.psi.weight == 0).sum() == 0


@pytest.mark.parametrize("at_once", [2, 100])
@pytest.mark.parametrize("rows", ["texts", "texts+queries"])
def test_classifier_rows_start_from_texts_and_queries(
    monkeypatch: pytest.MonkeyPatch, rows: Literal["texts", "texts+queries"], at_once: int
) -> None:
    monkeypatch.setattr(classifier, "LABELS_AT_ONCE", at_once)
    torch.manual_seed(0)
    head = Classifier(dim=3, rows=rows)
    head.build(4, num_labels=5)
    x_ND, x_LD = torch.randn(6, 4), torch.randn(5, 4)
    targets_NL = torch.tensor([[2.0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], *[[0, 0, 0, 0, 1]] * 3])
    head.start(x_ND, x_LD, sp.csr_array(targets_NL.numpy()))
    expected_LD = F.normalize(head.g2[0](x_LD), dim=1)
    if rows == "texts+queries":  # whatever their relevance; a label that nobody has keeps its text
        means_LD = (targets_NL.T > 0).float() @ F.normalize(head.g2[0](x_ND), dim=1)
        expected_LD = F.normalize(expected_LD + F.normalize(means_LD, dim=1), dim=1)
    torch.testing.assert_close(head.psi.weight.detach(), expected_LD.detach())


def test_rows_start_as_they_were_published() -> None:
    torch.manual_seed(0)

    def rows(**options: Any) -> torch.Tensor:
        head = Classifier(dim=64, **options)
        head.build(8, 300)
        return head.psi.weight.detach()

    assert float(rows(rows="normal").std()) == pytest.approx(0.02, rel=0.02)
    assert float(rows(rows="normal", rows_std=0.5).std()) == pytest.approx(0.5, rel=0.02)
    assert 0.99 < float(rows(rows="default").abs().max()) * 64**0.5 <= 1
    wide = rows(rows="normal", bias="label")
    assert not wide[:, 64].any()
    assert wide[:, :64].any()


@pytest.mark.parametrize("at_rest", [False, True])
def test_a_table_keeps_the_share_of_its_velocity(at_rest: bool) -> None:
    momentum = 0.0 if at_rest else 0.5
    head = Classifier(dim=3, table="momentum", table_momentum=momentum, table_lr=1.0, row_dropout=0.0)
    head.build(8, 4)
    optimizer, first = RowOptimizer([head.psi]), head.psi.weight.detach().clone()
    for _ in range(2):
        head.labels(None, torch.tensor([2])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = first.clone()
    expected[2] -= 1 + (1 + momentum)
    torch.testing.assert_close(head.psi.weight.detach(), expected)
