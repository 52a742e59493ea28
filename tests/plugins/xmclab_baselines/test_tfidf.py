"""TF-IDF baselines against dense computations."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import xmclab_baselines.tfidf as tfidf
from xmclab.api import Baseline, Dataset, Ranking, Split
from xmclab.data import open_dataset
from xmclab.evaluation.metrics import evaluate
from xmclab.host.registry import default_registry
from xmclab.model.encoders.features import Featuriser
from xmclab_baselines.tfidf import TfidfLabels, TfidfNeighbours, top_k

WORDS = ["red", "green", "blue", "apple", "pear", "plum", "pie", "tart", "cake", "juice"]


def small_dataset(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)

    def texts(number: int) -> list[str]:
        return [" ".join(rng.choice(WORDS, size=3)) for _ in range(number)]

    def pairs(rows: int, share: float) -> sp.csr_array:
        return sp.csr_array((rng.random((rows, 12)) < share).astype(np.float32))

    train = Split(texts(25), [""] * 25, pairs(25, 0.2), pairs(25, 0))
    test = Split([*texts(8), "nothing known"], [""] * 9, pairs(9, 0.2), pairs(9, 0.3))
    return Dataset("small", train, test, texts(12), [""] * 12, "")


def dense_rows(data: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    f = Featuriser(words=True, sublinear=True).fit([*data.train.texts, *data.label_texts])
    test, train, labels = (
        f.to_csr(f.transform(texts)).toarray() for texts in (data.test.texts, data.train.texts, data.label_texts)
    )
    return test, train, labels


def ranked(scores: np.ndarray, data: Dataset, k: int) -> list[list[int]]:
    filtered = data.test.filter_NL.toarray() > 0
    result = []
    for row, hidden in zip(scores, filtered, strict=True):
        labels = [label for label in range(len(row)) if row[label] > 0 and not hidden[label]]
        best = sorted(labels, key=lambda label: (-row[label], label))[:k]
        result.append(best + [-1] * (k - len(best)))
    return result


@pytest.fixture(params=[1 << 23, 24])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfidf, "PRODUCTS", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("seed", range(3))
def test_labels_equal_a_dense_computation(seed: int) -> None:
    data = small_dataset(seed)
    test, _, labels = dense_rows(data)
    ranking = TfidfLabels().rank(data, 20)
    scores = (test @ labels.T).astype(np.float32)
    found = ranking.ids_NK >= 0
    assert [set(row) for row in ranking.ids_NK.tolist()] == [set(row) for row in ranked(scores, data, 20)]
    np.testing.assert_allclose(
        ranking.scores_NK[found], np.take_along_axis(scores, ranking.ids_NK.clip(0)[:, :20], 1)[found], atol=1e-6
    )


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("seed", range(3))
def test_neighbours_equal_a_dense_computation(seed: int) -> None:
    data = small_dataset(seed)
    test, train, _ = dense_rows(data)
    cosines = np.round(test @ train.T, 5)  # ties are broken by id, not by rounding
    targets = data.train.targets_NL.toarray()
    ranking = TfidfNeighbours(neighbours=25).rank(data, 20)
    votes = np.zeros((len(data.test), data.num_labels))
    for query in range(len(data.test)):
        for neighbour in range(len(data.train)):
            votes[query] += cosines[query, neighbour] * targets[neighbour]
    assert [set(row) for row in ranking.ids_NK.tolist()] == [set(row) for row in ranked(votes, data, 20)]
    found = ranking.ids_NK >= 0
    np.testing.assert_allclose(
        ranking.scores_NK[found], np.take_along_axis(votes, ranking.ids_NK.clip(0), 1)[found], atol=1e-3
    )


def test_only_the_nearest_vote() -> None:
    none = sp.csr_array((1, 2), dtype=np.float32)
    train = Split(["red apple", "red"], ["", ""], sp.csr_array(np.eye(2, dtype=np.float32)), sp.csr_array((2, 2)))
    data = Dataset("two", train, Split(["red apple"], [""], none, none), ["x", "y"], ["", ""], "")
    assert TfidfNeighbours(neighbours=1).rank(data, 2).ids_NK.tolist() == [[0, -1]]
    assert TfidfNeighbours(neighbours=2).rank(data, 2).ids_NK.tolist() == [[0, 1]]


@pytest.mark.parametrize("k", [1, 3, 7, 50])
def test_top_k_breaks_ties_by_id_and_takes_what_is_above_0(k: int) -> None:
    scores = np.random.default_rng(0).integers(0, 3, (20, 7)).astype(np.float32)
    ids, best = top_k(sp.csr_array(scores), k)
    for row, found, values in zip(scores, ids.tolist(), best.tolist(), strict=True):
        expected = sorted(np.flatnonzero(row).tolist(), key=lambda label: (-row[label], label))[:k]
        assert found == expected + [-1] * (k - len(expected))
        assert values == [*row[expected].tolist(), *[-np.inf] * (k - len(expected))]


def test_blocks_hold_every_query_once_and_are_small() -> None:
    data = small_dataset()
    cosines = tfidf.Similarities(*tfidf.features(data, data.label_texts))
    for most in (1, 24, 1 << 23):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tfidf, "PRODUCTS", most)
            blocks = list(cosines.blocks())
        assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(len(data.test)))
        assert all(cosines.of(block).nnz <= most or block.stop - block.start == 1 for block in blocks)
    assert len(blocks) == 1


def test_labels_without_a_common_word_cost_nothing() -> None:
    """Time and memory follow what the scores list: a dense row of these would fill 8 GiB."""
    scores = sp.csr_array((np.float32([1, 2]), np.array([5, 1 << 30]), np.array([0, 2])), shape=(1, (1 << 31) - 1))
    assert top_k(scores, 3)[0].tolist() == [[1 << 30, 5, -1]]


def test_both_are_found_by_name_and_beat_chance_by_far() -> None:
    registry = default_registry()
    data = open_dataset("tiny", "title", registry)
    weights = np.ones(data.num_labels)
    rng = np.random.default_rng(0)
    chance_ids = np.array([rng.permutation(data.num_labels)[:100] for _ in data.test.texts])
    chance = evaluate(Ranking(chance_ids, np.zeros(chance_ids.shape, np.float32)), data.test.targets_NL, weights)
    for name in ("tfidf_labels", "tfidf_neighbours"):
        baseline: Baseline = registry.get("baseline", name)()
        ranking = baseline.rank(data, 100)
        values = evaluate(ranking, data.test.targets_NL, weights)
        assert values["P@1"] > 10 + chance["P@1"]
        assert values["R@100"] > 20 + chance["R@100"]
        kept = sp.csr_array((data.test.filter_NL.shape), dtype=np.int64).tolil()
        rows, places = np.nonzero(ranking.ids_NK >= 0)
        kept[rows, ranking.ids_NK[rows, places]] = 1
        assert sp.csr_array(kept).multiply(data.test.filter_NL).nnz == 0
