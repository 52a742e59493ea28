"""Gandalf's soft targets against double loops, and what losses and training make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import xmclab
from xmclab.data.validation import open_with_validation
from xmclab.training.trainer import Trainer
from xmclab_systems import gandalf
from xmclab_systems.gandalf import co_occurrence


def looped(targets_NL: sp.csr_array, threshold: float, most: int) -> np.ndarray[Any, Any]:
    """The formula, pair by pair."""
    true = targets_NL.toarray() > 0
    labels = true.shape[1]
    found = np.zeros((labels, labels))
    for a in range(labels):
        queries = [i for i in range(len(true)) if true[i, a]]
        others = {}
        for b in range(labels):
            both = sum(bool(true[i, b]) for i in queries)
            if a != b and both and both / len(queries) >= threshold:
                others[b] = both / len(queries)
        for b in sorted(others, key=lambda label: (-others[label], label))[:most]:
            found[a, b] = others[b]
        found[a, a] = 1
    return found


def drawn(queries: int, labels: int, share: float, seed: int) -> sp.csr_array:
    rng = np.random.default_rng(seed)
    cells = rng.random((queries, labels)) < share * np.linspace(0, 2, labels)  # label 0 has no query
    return sp.csr_array(np.where(cells, rng.choice([0.5, 1.0], cells.shape), 0).astype(np.float32))


@pytest.mark.parametrize(("threshold", "most"), [(0.0, 100), (0.1, 30), (0.25, 2), (1.0, 3), (0.0, 0)])
@pytest.mark.parametrize("products", [1, 50, 1 << 24])
def test_soft_targets_are_shares_of_a_labels_queries(
    threshold: float, most: int, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many labels are counted at a time."""
    monkeypatch.setattr(gandalf, "PRODUCTS", products)
    for seed, (queries, labels, share) in enumerate([(40, 9, 0.3), (12, 20, 0.2), (1, 3, 1.0), (30, 1, 0.5)]):
        targets_NL = drawn(queries, labels, share, seed)
        found_LL = co_occurrence(targets_NL, threshold, most)
        assert found_LL.has_canonical_format
        assert found_LL.dtype == np.float32
        np.testing.assert_allclose(found_LL.toarray(), looped(targets_NL, threshold, most), rtol=1e-6)


def test_a_block_counts_no_more_pairs_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gandalf, "PRODUCTS", 40)
    targets_NL = drawn(50, 30, 0.2, 0)
    queries_LN, labels_of_N = targets_NL.T.tocsr(), np.diff(targets_NL.indptr)
    blocks = list(gandalf._blocks(queries_LN, labels_of_N))
    assert [start for start, _ in blocks] == [0, *(stop for _, stop in blocks[:-1])]
    assert blocks[-1][1] == 30
    for start, stop in blocks:
        products = labels_of_N[queries_LN[start:stop].indices].sum()
        assert stop == start + 1 or products <= 40


def test_label_queries_train_with_their_soft_targets(small_config: Callable[..., Any]) -> None:
    config = small_config("transform=gandalf", "transform.threshold=0.3", "reduction.clf=ova", "loss.clf=bce")
    opened = open_with_validation(config)
    trainer = Trainer(config, opened.training)
    first, expected = len(opened.whole.train), looped(opened.whole.train.targets_NL, 0.3, 30)
    several = np.argsort(-(expected > 0).sum(axis=1))[:8]
    prepared = trainer.prepare(0, np.sort(first + several))
    batch = prepared.batch
    row_E, column_E, value_E = batch.positives
    assert set(np.round(value_E, 6)) > {1.0}
    for row, label, value in zip(batch.rows_Q[row_E], batch.labels_P[column_E], value_E, strict=True):
        assert value == pytest.approx(expected[row - first, label])
    assert math.isfinite(trainer.step(0, prepared)["loss"])


def test_losses_see_soft_targets() -> None:
    """bce by its definition in every cell; psl as weights of the positives, none of which is a negative."""
    rng = np.random.default_rng(0)
    s, y = rng.normal(size=(3, 5)), np.array([[1, 0.4, 0, 0, 0], [0, 1, 0, 0.2, 0.7], [0, 0, 0, 0, 1.0]])
    bce = ds = 0.0
    for row in range(3):
        negatives = sum(math.exp(s[row, n]) for n in range(5) if y[row, n] == 0)
        for column in range(5):
            value = s[row, column]
            bce += (math.log1p(math.exp(value)) - y[row, column] * value) / 15
            if y[row, column] > 0:
                ds += y[row, column] / y[row].sum() * math.log1p(negatives / math.exp(value)) / 3
    scores, soft = torch.tensor(s), torch.tensor(y)
    found = xmclab.objective("bce", reduction="ova", temperature=1.0, q2l_share=1.0)(scores, soft)
    assert float(found) == pytest.approx(bce)
    found = xmclab.objective("ds", reduction="psl", temperature=1.0, q2l_share=1.0)(scores, soft)
    assert float(found) == pytest.approx(ds)
