"""Metrics against their definitions, oracles and bad inputs."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xmclab.api import Ranking
from xmclab.data import propensity
from xmclab.evaluation import metrics

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "metrics.npz", allow_pickle=False)
KS = tuple(range(1, 11))
KINDS = ("P", "PSP", "nDCG", "PSnDCG", "R", "PSR")


def golden_matrix(case: int, name: str) -> sp.csr_array:
    data, indices, indptr, shape = (
        GOLDEN[f"case{case}_{name}_{part}"] for part in ("data", "indices", "indptr", "shape")
    )
    return sp.csr_array((data, indices, indptr), shape=tuple(shape))


@pytest.mark.parametrize("case", [0, 1])
def test_golden_values(case: int) -> None:
    train, test, predicted = (golden_matrix(case, name) for name in ("train", "test", "pred"))
    weights = propensity.inverse_propensity(train, float(GOLDEN[f"case{case}_A"]), float(GOLDEN[f"case{case}_B"]))
    np.testing.assert_allclose(weights, GOLDEN[f"case{case}_inv_propensity"], rtol=1e-12)
    values = metrics.evaluate(metrics.ranking_from_scores(predicted, 10), test, weights, KS, KS)
    names = ("precision", "psprecision", "ndcg", "psndcg", "recall", "psrecall")
    for kind, name in zip(KINDS, names, strict=True):
        ours = [values[f"{kind}@{k}"] / 100 for k in KS]
        np.testing.assert_allclose(ours, GOLDEN[f"case{case}_{name}"], atol=1e-6, rtol=0, err_msg=name)


def naive(ids: Any, truth: Any, weights: Any, k: int) -> dict[str, float]:
    """Every metric by its definition, row after row."""
    rows = len(ids)
    found = dict.fromkeys(KINDS, 0.0)
    best = dict.fromkeys(KINDS, 0.0)
    for row in range(rows):
        true = [label for label in range(truth.shape[1]) if truth[row, label]]
        if not true:
            continue
        discounts = [1 / math.log2(place + 2) for place in range(k)]
        ideal = sum(discounts[: len(true)])
        by_weight = sorted((weights[label] for label in true), reverse=True)[:k]
        hits = [(place, weights[label]) for place, label in enumerate(ids[row][:k]) if label in true]
        for sums, gains in ((found, hits), (best, list(enumerate(by_weight)))):
            sums["P"] += len(gains) / k
            sums["nDCG"] += sum(discounts[place] for place, _ in gains) / ideal
            sums["R"] += len(gains) / len(true)
            sums["PSP"] += sum(weight for _, weight in gains)
            sums["PSnDCG"] += sum(discounts[place] * weight for place, weight in gains) / ideal
            sums["PSR"] += sum(weight for _, weight in gains) / len(true)
    means = {f"{kind}@{k}": 100 * found[kind] / rows for kind in ("P", "nDCG", "R")}
    ratios = {f"{kind}@{k}": 100 * found[kind] / best[kind] if best[kind] else 0.0 for kind in ("PSP", "PSnDCG", "PSR")}
    return means | ratios


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with many ties (NaN: not predicted), truth with empty rows, filter pairs."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 8)))
    scores = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([np.nan, 0.5, 1.0, 2.0])))
    truth = draw(hnp.arrays(np.bool_, shape))
    filtered = draw(hnp.arrays(np.bool_, shape)) & ~truth
    return scores, truth, filtered


def stored(scores: np.ndarray) -> sp.csr_array:
    rows, columns = np.nonzero(~np.isnan(scores))
    return sp.csr_array((scores[rows, columns], (rows, columns)), shape=scores.shape)


def naive_ranking(scores: np.ndarray, dropped: np.ndarray, k: int) -> list[list[int]]:
    ranked = []
    for row in range(len(scores)):
        labels = [
            label for label in range(scores.shape[1]) if not np.isnan(scores[row, label]) and not dropped[row, label]
        ]
        best = sorted(labels, key=lambda label: (-scores[row, label], label))[:k]
        ranked.append(best + [-1] * (k - len(best)))
    return ranked


@given(problems(), st.integers(1, 10), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_every_metric_is_its_definition(problem: Any, k: int, seed: int) -> None:
    scores, truth, filtered = problem
    weights = 1 + np.random.default_rng(seed).random(scores.shape[1])
    depth = k + int(filtered.sum(axis=1).max())
    ranking = metrics.drop_filtered(metrics.ranking_from_scores(stored(scores), depth), sp.csr_array(filtered), k)
    assert ranking.ids_NK.tolist() == naive_ranking(scores, filtered, k)
    values = metrics.evaluate(ranking, sp.csr_array(truth), weights, (k,), (k,))
    expected = naive(ranking.ids_NK.tolist(), truth, weights, k)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        assert value == pytest.approx(expected[name], abs=1e-9), name


@given(problems(), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_contributions_sum_to_the_whole(problem: Any, seed: int) -> None:
    scores, truth, _ = problem
    rng = np.random.default_rng(seed)
    weights, labels = 1 + rng.random(scores.shape[1]), scores.shape[1]
    ranking = metrics.ranking_from_scores(stored(scores), 5)
    train = sp.csr_array(rng.random((30, labels)) < 0.5)
    whole = metrics.evaluate(ranking, sp.csr_array(truth), weights, (1, 3, 5), (2, 5))
    three = propensity.LabelGroups(("a", "b", "c"), rng.integers(0, 3, labels))
    for groups in (three, propensity.frequency_bands(train), propensity.frequency_deciles(train)):
        parts = metrics.contributions(ranking, sp.csr_array(truth), weights, groups, (1, 3, 5), (2, 5))
        assert tuple(parts) == groups.names
        for name, value in whole.items():
            assert sum(part[name] for part in parts.values()) == pytest.approx(value, abs=1e-9)


def test_a_contribution_counts_only_the_labels_of_its_group() -> None:
    ranking = Ranking(np.array([[0, 1, 2]]), np.zeros((1, 3), np.float32))
    groups = propensity.LabelGroups(("even", "odd"), np.array([0, 1, 0]))
    truth = sp.csr_array(np.array([[1, 1, 1]]))
    parts = metrics.contributions(ranking, truth, np.array([1.0, 2.0, 3.0]), groups, (3,), ())
    assert parts["even"]["P@3"] == pytest.approx(200 / 3)
    assert parts["odd"]["P@3"] == pytest.approx(100 / 3)
    assert parts["even"]["PSP@3"] == pytest.approx(400 / 6)


def test_the_chunk_size_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores, truth, filtered = (sp.random_array((50, 40), density=0.3, rng=rng, format="csr") for _ in range(3))
    weights = 1 + rng.random(40)

    def measure() -> dict[str, float]:
        ranking = metrics.drop_filtered(metrics.ranking_from_scores(scores, 40), filtered, 10)
        return metrics.evaluate(ranking, truth, weights, KS, KS)

    whole = measure()
    for chunk in (1, 7, 49):
        monkeypatch.setattr(metrics, "CHUNK", chunk)
        assert measure() == whole


def test_a_perfect_ranking_scores_100_where_rows_are_full() -> None:
    truth = sp.csr_array(np.array([[1, 1, 0], [0, 1, 1]]))
    weights = np.array([1.0, 2.0, 3.0])
    ranking = Ranking(np.array([[1, 0], [2, 1]]), np.zeros((2, 2), np.float32))
    values = metrics.evaluate(ranking, truth, weights, (1, 2), (2,))
    assert all(value == pytest.approx(100) for value in values.values())


def test_relevances_do_not_enter_and_stored_zeros_are_no_truth() -> None:
    truth = sp.csr_array(np.array([[0.0, 0.25, 7.0]]))
    with_zero = sp.csr_array((np.array([0.0, 1.0, 1.0]), np.array([0, 1, 2]), np.array([0, 3])), shape=(1, 3))
    ranking = Ranking(np.array([[0, 1]]), np.zeros((1, 2), np.float32))
    weights = np.ones(3)
    values = metrics.evaluate(ranking, truth, weights, (1, 2), (2,))
    assert values == metrics.evaluate(ranking, with_zero, weights, (1, 2), (2,))
    assert (values["P@1"], values["P@2"]) == (0, 50)


def test_cutoffs_beyond_the_ranking_are_left_out_unless_it_can_hold_all_labels() -> None:
    truth = sp.csr_array(np.eye(3, 20))
    ranking = Ranking(np.tile(np.arange(5), (3, 1)), np.zeros((3, 5), np.float32))
    assert set(metrics.evaluate(ranking, truth, np.ones(20), (1, 6), (5, 100))) == {
        *(f"{kind}@1" for kind in KINDS[:4]),
        "R@5",
        "PSR@5",
    }
    few = sp.csr_array(np.eye(3, 5))
    assert metrics.evaluate(ranking, few, np.ones(5), (), (100,))["R@100"] == 100


def test_no_rows_have_no_metrics() -> None:
    ranking = Ranking(np.zeros((0, 5), np.int64), np.zeros((0, 5), np.float32))
    assert metrics.evaluate(ranking, sp.csr_array((0, 4)), np.ones(4)) == {}


def test_ids_outside_the_labels_never_hit_a_neighbouring_row() -> None:
    truth = sp.csr_array(np.array([[0, 0, 1], [1, 0, 0]]))
    ranking = Ranking(np.array([[3, -1], [-1, 4]]), np.zeros((2, 2), np.float32))
    assert metrics.evaluate(ranking, truth, np.ones(3), (2,), ())["P@2"] == 0


def test_drop_filtered_keeps_scores_beside_their_labels() -> None:
    ranking = Ranking(np.array([[4, 2, 0, -1]]), np.array([[3.0, 2.0, 1.0, -np.inf]], np.float32))
    kept = metrics.drop_filtered(ranking, sp.csr_array(([1.0], ([0], [2])), shape=(1, 5)), 5)
    assert kept.ids_NK.tolist() == [[4, 0, -1, -1, -1]]
    assert kept.scores_NK.tolist() == [[3.0, 1.0, -np.inf, -np.inf, -np.inf]]


def test_drop_filtered_keeps_the_order_of_long_rankings() -> None:
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(500)[:300] for _ in range(4)])
    hidden = rng.random((4, 500)) < 0.3
    kept = metrics.drop_filtered(Ranking(ids, np.zeros(ids.shape, np.float32)), sp.csr_array(hidden), 150)
    assert kept.ids_NK.tolist() == [[label for label in ids[row] if not hidden[row, label]][:150] for row in range(4)]


def test_unsorted_and_repeated_truth() -> None:
    truth = sp.csr_array((np.array([1.0, 0.0, 1.0, 1.0]), np.array([3, 1, 0, 3]), np.array([0, 4])), shape=(1, 4))
    ranking = Ranking(np.array([[3, 1]]), np.zeros((1, 2), np.float32))
    values = metrics.evaluate(ranking, truth, np.ones(4), (2,), (2,))
    assert (values["P@2"], values["R@2"]) == (50, 50)
    assert truth.nnz == 4


def test_memory_does_not_grow_with_rows_times_depth() -> None:
    rng = np.random.default_rng(0)
    truth = sp.csr_array((rng.random((20_000, 50)) < 0.1).astype(np.float32))
    ranking = Ranking(rng.integers(-1, 51, (20_000, 50)), np.zeros((20_000, 50), np.float32))
    ks = range(1, 51)
    metrics.evaluate(ranking, truth, np.ones(50), ks, ks)
    tracemalloc.start()
    metrics.evaluate(ranking, truth, np.ones(50), ks, ks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
