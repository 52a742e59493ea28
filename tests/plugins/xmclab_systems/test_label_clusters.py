"""Text of a label and the vector of its cluster: against double loops, in training, and in runs and exports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from xmclab.api import Head
from xmclab.host.registry import default_registry
from xmclab.model.tables import RowOptimizer
from xmclab.runs.store import Labels
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor
from xmclab_systems.label_clusters import LabelClusters

DIM, L = 4, 12
FREQUENT = [7, 2]  # of all labels, the most frequent first
COUNTS = [1, 1, 4, 1, 0, 2, 1, 5, 1, 1, 0, 1]
TARGETS_NL = sp.csr_array(np.array([[n < count for count in COUNTS] for n in range(5)], dtype=np.float32))
X_ND = torch.randn(5, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def label_texts() -> torch.Tensor:
    """Texts around a few directions, in turn."""
    generator = torch.Generator().manual_seed(1)
    near_LD = 0.05 * torch.randn(L, DIM, generator=generator, dtype=torch.float64)
    return near_LD + torch.eye(DIM, dtype=torch.float64)[torch.arange(L) % 2] * 3


def made(**options: Any) -> LabelClusters:
    """With the encoder's own vectors as texts."""
    torch.manual_seed(1)
    plain = {"projection": "none", "dim": 0, "activation": "none", "dropout": 0.0, "clusters": 2, "private": 2}
    head = LabelClusters(**{**plain, **options})
    head.build(DIM, L)
    head.double().eval().start(X_ND, label_texts(), TARGETS_NL)
    return head


def unit(v: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(a * a for a in v))
    return [a / length for a in v]


def test_frequent_labels_have_vectors_of_their_own_and_others_share_those_of_similar_labels() -> None:
    row_L = made().get_buffer("row_L").tolist()
    assert [row_L[label] for label in FREQUENT] == [0, 1]
    others = [label for label in range(L) if label not in FREQUENT]
    assert Counter(row_L[label] for label in others) == {2: 5, 3: 5}
    for one in others:
        for two in others:
            assert (row_L[one] == row_L[two]) == (one % 2 == two % 2)


@pytest.mark.parametrize("unit_texts", [True, False])
def test_a_label_is_its_text_and_a_vector_of_the_table(unit_texts: bool) -> None:
    head, x_LD = made(unit_texts=unit_texts), label_texts()
    row_L, table = head.get_buffer("row_L").tolist(), head.own_rows.weight.tolist()
    expected = []
    for label in range(L):
        text = unit(x_LD[label].tolist()) if unit_texts else x_LD[label].tolist()
        expected.append(unit([t + a for t, a in zip(text, table[row_L[label]], strict=True)]))
    found = head.labels(x_LD, torch.arange(L))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_only_vectors_of_the_pool_s_clusters_move_together_for_all_of_their_labels() -> None:
    head, pool = made(), torch.tensor([0, 4, 7])
    before, optimizer = head.own_rows.weight.detach().clone(), RowOptimizer([head.own_rows])
    apart = head.labels(label_texts(), torch.arange(L)).detach()
    (head.queries(X_ND) @ head.labels(label_texts()[pool], pool).T).square().sum().backward()
    optimizer.step()
    moved = (head.own_rows.weight != before).any(dim=1).nonzero().flatten().tolist()
    row_L = head.get_buffer("row_L")
    assert moved == sorted(set(row_L[pool].tolist()))
    changed = (head.labels(label_texts(), torch.arange(L)) != apart).any(dim=1)
    assert changed.tolist() == [row in moved for row in row_L.tolist()]


@pytest.mark.parametrize(
    ("options", "private", "clusters"),
    [({}, 2, 2), ({"clusters": 65536, "private": 1000}, 2, 5), ({"private": 0, "clusters": 3}, 0, 3)],
)
def test_few_labels_have_fewer_clusters_and_private_vectors(
    options: dict[str, int], private: int, clusters: int
) -> None:
    head = made(**options)
    assert head.num_private == private
    assert len(head.own_rows.weight) == private + clusters
    assert sorted(set(head.get_buffer("row_L").tolist())) == list(range(private + clusters))


@pytest.mark.parametrize("labels", [1, 2, 3])
def test_a_handful_of_labels_will_do(labels: int) -> None:
    head = LabelClusters(projection="none", dim=0, activation="none")
    head.build(DIM, labels)
    head.start(X_ND.float(), label_texts()[:labels].float(), TARGETS_NL[:, :labels])
    assert head.labels(label_texts()[:labels].float(), torch.arange(labels)).isfinite().all()


def test_vectors_start_by_xavier_s_rule() -> None:
    weight = made(clusters=6, private=0).own_rows.weight.detach()
    bound = math.sqrt(6 / (6 + DIM))
    assert 0.6 * bound < float(weight.abs().max()) <= bound


def test_new_labels_belong_to_no_cluster() -> None:
    head, x_LD = made(), label_texts()
    torch.testing.assert_close(head.search_labels(x_LD, torch.arange(L) + L), head.search_queries(x_LD))


def test_clusters_are_kept_with_the_run_and_left_out_of_its_export(train: Callable[..., Path], tmp_path: Path) -> None:
    clusters = ["head.de=label_clusters", "head.de.dim=16", "head.de.clusters=40", "head.de.private=30"]
    run, registry = train(tmp_path / "run", *clusters, "head.clf=none", "optim.no_decay=own_rows"), default_registry()
    write_export(open_predictor(run, registry, "cpu"), run, tmp_path / "export", None)
    answers = [open_predictor(folder, registry, "cpu") for folder in (run, tmp_path / "export")]
    head = answers[0].model.head("de")
    assert isinstance(head, Head)
    row_L = head.get_buffer("row_L")
    labels = len(row_L)
    assert sorted(set(row_L.tolist())) == list(range(70))
    assert row_L.bincount(minlength=70)[30:].max() - row_L.bincount(minlength=70)[30:].min() <= 1
    texts = ["a database for the web", "music player"]
    for with_new in (False, True):
        if with_new:
            for answering in answers:
                answering.add_labels(Labels(["new"], ["perl library"]))
        first, second = (answering.rank(texts, labels + 1, "de") for answering in answers)
        assert (first.ids_NK == labels).any() == with_new
        np.testing.assert_allclose(first.scores_NK, second.scores_NK, atol=1e-6)
