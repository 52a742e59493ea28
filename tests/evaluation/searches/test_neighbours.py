"""The vote of the nearest training queries, against a double loop."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from xmclab.evaluation.search import Space
from xmclab.evaluation.searches import neighbours
from xmclab.evaluation.searches.neighbours import Neighbours
from xmclab.plan.indexes.exact import Exact

TRAIN, TEST, LABELS, NEAR = 40, 7, 23, 9
WIDTHS = {"de": 4, "clf": 3}


@pytest.fixture
def targets_NL() -> sp.csr_array:
    targets = sp.random_array((TRAIN, LABELS), density=0.1, rng=np.random.default_rng(0)).toarray().astype("f4")
    targets[[3, 8]] = 0  # queries without labels have no vote
    return sp.csr_array(targets)


@pytest.fixture
def vectors() -> dict[str, dict[str, Tensor]]:
    torch.manual_seed(0)
    sizes = {"train": TRAIN, "test": TEST}
    queries = {name: {head: torch.randn(n, width) for head, width in WIDTHS.items()} for name, n in sizes.items()}
    return queries | {"labels": {"de": torch.randn(LABELS, 5), "clf": torch.randn(LABELS, 3)}}  # de has a bias


def fitted(vectors: dict[str, dict[str, Tensor]], targets_NL: sp.csr_array, **options: float) -> Neighbours:
    search = Neighbours(neighbours=NEAR, temperature=0.2, tail=0.3, **options)  # type: ignore[arg-type]
    search.index = Exact()
    search.fit(vectors["train"], targets_NL)
    return search


def space(vectors: dict[str, dict[str, Tensor]]) -> Space:
    return Space(("de", "clf"), LABELS, vectors["labels"].__getitem__, lambda heads: (Exact(), False))


def votes(vectors: dict[str, dict[str, Tensor]], targets_NL: sp.csr_array) -> Tensor:
    """The vote, query by query and neighbour by neighbour."""
    found = torch.zeros(TEST, LABELS)
    for i in range(TEST):
        cosines = {}
        for n in range(TRAIN):
            if targets_NL[[n]].nnz:
                of_heads = [F.cosine_similarity(vectors["test"][h][i], vectors["train"][h][n], dim=0) for h in WIDTHS]
                cosines[n] = float(sum(of_heads)) / len(of_heads)
        nearest = sorted(cosines, key=lambda n: -cosines[n])[:NEAR]
        total = sum(math.exp(cosines[n] / 0.2) for n in nearest)
        for n in nearest:
            for label in targets_NL[[n]].indices:
                found[i, label] += math.exp(cosines[n] / 0.2) / total
    count_L = torch.from_numpy((targets_NL.toarray() > 0).sum(axis=0))
    return found / count_L.clamp(min=1) ** 0.3


def test_the_vote_is_that_of_a_double_loop(vectors: dict[str, dict[str, Tensor]], targets_NL: sp.csr_array) -> None:
    search, expected = fitted(vectors, targets_NL), votes(vectors, targets_NL)
    torch.testing.assert_close(torch.from_numpy(search.votes(vectors["test"]).toarray()), expected)
    ids, scores = search.rank("nn", vectors["test"], space(vectors), 5)
    torch.testing.assert_close(scores[ids >= 0], expected.gather(1, ids.clamp(min=0))[ids >= 0])
    best = expected.sort(dim=1, descending=True).values[:, :5]
    torch.testing.assert_close(scores.clamp(min=0), best)
    assert ((ids < 0) == (best == 0)).all()


def test_of_equal_votes_those_for_the_first_labels_are_kept(vectors: dict[str, dict[str, Tensor]]) -> None:
    search = fitted(vectors, sp.csr_array(np.ones((TRAIN, LABELS), np.float32)))
    ids, _ = search.rank("nn", vectors["test"], space(vectors), 5)
    assert ids.tolist() == [list(range(5))] * TEST


@pytest.mark.parametrize("name", ["nn", "de+clf+nn"])
def test_blocks_with_fewer_votes_than_labels_wanted_fit_together(
    name: str, vectors: dict[str, dict[str, Tensor]], targets_NL: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = fitted(vectors, targets_NL)
    whole_ids, whole_scores = search.rank(name, vectors["test"], space(vectors), LABELS)
    monkeypatch.setattr(neighbours, "VOTES_AT_ONCE", 1)
    ids, scores = search.rank(name, vectors["test"], space(vectors), LABELS)
    assert torch.equal(ids, whole_ids)
    torch.testing.assert_close(scores, whole_scores)


@pytest.mark.parametrize("cells", [1, 3 * LABELS, 1 << 24])
@pytest.mark.parametrize("heads", ["de", "clf", "de+clf"])
@pytest.mark.parametrize("k", [1, 5, LABELS])
def test_it_is_added_to_the_scores_of_the_heads(
    vectors: dict[str, dict[str, Tensor]],
    targets_NL: sp.csr_array,
    monkeypatch: pytest.MonkeyPatch,
    heads: str,
    k: int,
    cells: int,
) -> None:
    monkeypatch.setattr(neighbours, "VOTES_AT_ONCE", cells)
    queries, labels = vectors["test"], vectors["labels"]
    scores = {"de": queries["de"] @ labels["de"][:, :4].T + labels["de"][:, 4], "clf": queries["clf"] @ labels["clf"].T}
    expected = sum(scores[head] for head in heads.split("+")) + 3 * votes(vectors, targets_NL)
    ids, found = fitted(vectors, targets_NL, weight=3).rank(f"{heads}+nn", queries, space(vectors), k)
    torch.testing.assert_close(found, expected.sort(dim=1, descending=True).values[:, :k])
    torch.testing.assert_close(found, expected.gather(1, ids))


def test_added_labels_get_no_vote(vectors: dict[str, dict[str, Tensor]], targets_NL: sp.csr_array) -> None:
    search, labels = fitted(vectors, targets_NL, weight=0.5), space(vectors)
    labels.added_AD = torch.randn(2, 5)
    ids, scores = search.rank("de+clf+nn", vectors["test"], labels, LABELS + 2)
    assert ids.sort(dim=1).values.tolist() == [list(range(LABELS + 2))] * TEST
    plain_ids, plain_scores = labels.nearest("de+clf", vectors["test"], LABELS + 2)
    expected = torch.zeros(TEST, LABELS + 2).scatter(1, plain_ids, plain_scores)
    expected[:, :LABELS] += 0.5 * votes(vectors, targets_NL)
    torch.testing.assert_close(scores, expected.gather(1, ids))


def test_names_follow_the_heads() -> None:
    search = Neighbours()
    assert search.names(["de", "clf"]) == ("de", "clf", "de+clf", "nn", "de+clf+nn")
    assert search.names(["clf"]) == ("clf", "nn", "clf+nn")


def test_what_is_saved_ranks_the_same(
    vectors: dict[str, dict[str, Tensor]], targets_NL: sp.csr_array, tmp_path: Path
) -> None:
    first, second = fitted(vectors, targets_NL), Neighbours(neighbours=NEAR, temperature=0.2, tail=0.3)
    first.save(tmp_path)
    second.index = Exact()
    second.load(tmp_path, torch.device("cpu"))
    for name in ("nn", "de+clf+nn"):
        for a, b in zip(*(s.rank(name, vectors["test"], space(vectors), 9) for s in (first, second)), strict=True):
            assert torch.equal(a, b)
