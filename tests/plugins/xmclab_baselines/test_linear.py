"""One-vs-all against a loop over labels, queries and features."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.svm import LinearSVC

import xmclab_baselines.extras as extras
import xmclab_baselines.linear as linear
from xmclab.api import Dataset, Split
from xmclab.data import open_dataset
from xmclab.errors import ConfigError
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.encoders.features import Featuriser
from xmclab_baselines.linear import OneVsAll, top_k

WORDS = ["red", "green", "blue", "apple", "pear", "plum", "pie", "tart", "cake", "juice"]


def small_dataset(seed: int = 0) -> Dataset:
    """Label 0 has no training query, label 1 has all of them; some pairs of queries and labels are filtered."""
    rng = np.random.default_rng(seed)

    def texts(number: int) -> list[str]:
        return [" ".join(rng.choice(WORDS, size=3)) for _ in range(number)]

    def pairs(rows: int, share: float) -> sp.csr_array:
        return sp.csr_array((rng.random((rows, 12)) < share).astype(np.float32))

    targets = pairs(40, 0.2).toarray()
    targets[:, 0], targets[:, 1] = 0, 1
    filtered = pairs(40, 0.1).toarray() * (targets == 0)
    train = Split(texts(40), [""] * 40, sp.csr_array(targets), sp.csr_array(filtered))
    test = Split([*texts(8), "nothing known"], [""] * 9, pairs(9, 0.2), pairs(9, 0.3))
    return Dataset("small", train, test, texts(12), [""] * 12, "")


def rows_of(data: Dataset, *splits: Sequence[str]) -> list[np.ndarray]:
    fitted = Featuriser(words=True, sublinear=True).fit([*data.train.texts, *data.label_texts])
    return [fitted.to_csr(fitted.transform(texts)).toarray().astype(np.float64) for texts in splits]


def loop(data: Dataset, c: float, delta: float) -> np.ndarray:
    """The scores of all labels: a classifier each, its small weights set to 0 one by one."""
    x_NF, q_QF = rows_of(data, data.train.texts, data.test.texts)
    targets, filtered = data.train.targets_NL.toarray(), data.train.filter_NL.toarray()
    scores = np.full((len(q_QF), data.num_labels), -np.inf)
    for label in range(data.num_labels):
        kept = [n for n in range(len(x_NF)) if not filtered[n, label]]
        y = [int(targets[n, label] > 0) for n in kept]
        if not any(y):
            continue
        weights, bias = np.zeros(x_NF.shape[1]), 1.0
        if not all(y):
            model = LinearSVC(dual=False, C=c, tol=1e-8).fit(x_NF[kept], y)
            weights, bias = model.coef_[0], float(model.intercept_[0])
        for feature in range(len(weights)):
            if abs(weights[feature]) < delta:
                weights[feature] = 0
        for query in range(len(q_QF)):
            scores[query, label] = sum(w * x for w, x in zip(weights, q_QF[query], strict=True)) + bias
    return scores


@pytest.mark.parametrize(("c", "delta"), [(1.0, 0.01), (0.3, 0.2), (5.0, 0.0)])
@pytest.mark.parametrize("cells", [1 << 22, 13])
def test_the_ranking_is_that_of_a_loop(c: float, delta: float, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "CELLS", cells)
    monkeypatch.setattr(linear, "BLOCK", 5)
    data = small_dataset()
    expected = loop(data, c, delta)
    ranking = OneVsAll(c=c, delta=delta, tolerance=1e-8).rank(data, 20)
    assert ranking.ids_NK.shape == ranking.scores_NK.shape == (9, 20)
    hidden = data.test.filter_NL.toarray() > 0
    for query, (ids, scores) in enumerate(zip(ranking.ids_NK, ranking.scores_NK, strict=True)):
        shown = [label for label in range(1, 12) if not hidden[query, label]]
        assert sorted(ids[: len(shown)].tolist()) == shown
        assert (ids[len(shown) :] == -1).all()
        np.testing.assert_allclose(scores[: len(shown)], expected[query, ids[: len(shown)]], atol=1e-5)
        assert (np.diff(scores[: len(shown)]) <= 0).all()


def test_the_weights_minimise_the_formula() -> None:
    """The gradient of the sum in the docstring, computed query by query, is 0; without a solver."""
    data = small_dataset(1)
    (x_NF,) = rows_of(data, data.train.texts)
    found, bias_L = OneVsAll(c=2.0, delta=0, tolerance=1e-10).train(
        sp.csr_array(x_NF), data.train.targets_NL, data.train.filter_NL
    )
    targets, filtered = data.train.targets_NL.toarray(), data.train.filter_NL.toarray()
    for label in range(2, data.num_labels):
        weights, bias = found.toarray()[label].astype(np.float64), float(bias_L[label])
        slope, slope_of_bias = weights.copy(), bias
        for query in np.flatnonzero(filtered[:, label] == 0):
            y = 1 if targets[query, label] else -1
            room = max(0.0, 1 - y * (weights @ x_NF[query] + bias))
            slope -= 2 * 2.0 * room * y * x_NF[query]
            slope_of_bias -= 2 * 2.0 * room * y
        np.testing.assert_allclose(slope, 0, atol=1e-4)
        assert slope_of_bias == pytest.approx(0, abs=1e-4)


def test_small_weights_are_dropped_and_not_kept_as_zeros() -> None:
    data = small_dataset()
    (x_NF,) = rows_of(data, data.train.texts)
    split = sp.csr_array(x_NF), data.train.targets_NL, data.train.filter_NL
    every, few = OneVsAll(delta=0).train(*split)[0], OneVsAll(delta=0.3).train(*split)[0]
    assert few.nnz == np.count_nonzero(np.abs(every.toarray()) >= 0.3) < every.nnz
    assert few.dtype == np.float32


def test_threads_change_no_number() -> None:
    data = open_dataset("tiny", "title", default_registry())
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(OneVsAll().rank(data, 10))
    finally:
        torch.set_num_threads(before)
    assert (found[0].ids_NK == found[1].ids_NK).all()
    assert (found[0].scores_NK == found[1].scores_NK).all()
    assert Evaluator.of_data(data).metrics(found[0])["P@1"] > 36  # neighbours by TF-IDF: 34


FIRST = """
import scipy.sparse as sp
from threadpoolctl import threadpool_info
from xmclab_baselines.linear import OneVsAll

class Watched(OneVsAll):
    def _one(self, *rows):
        found = super()._one(*rows)
        print({each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"})
        return found

eye = sp.eye_array(3, format="csr", dtype="float32")
Watched().train(eye, sp.csr_array(eye[:, :1]), sp.csr_array((3, 1)))
"""


def test_blas_has_one_thread_from_the_first_label_on() -> None:
    """In a new process, where training is what loads scikit-learn."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "{1}\n"


@pytest.mark.parametrize("k", [1, 3, 7])
def test_top_k_breaks_ties_by_id(k: int) -> None:
    scores = np.random.default_rng(0).integers(-2, 2, (20, 7)).astype(np.float32)
    scores[scores == -2] = -np.inf
    scores[3] *= -1.0  # with zeros below 0 and infinity
    for row, ids, best in zip(scores, *top_k(scores, k), strict=True):
        expected = sorted(range(7), key=lambda label: (-row[label], label))[:k]
        assert ids.tolist() == [label if row[label] > -np.inf else -1 for label in expected]
        assert best.tolist() == row[expected].tolist()


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("one_vs_all", "sklearn", "linear"), ("napkinxc", "napkinxc", "napkinxc")]
)
def test_a_missing_package_is_told_before_anything_trains(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", {}.get)
    with pytest.raises(ConfigError) as caught:
        resolve([f"baseline={name}"], default_registry())
    assert str(caught.value) == f'baseline {name}: needs {module} (pip install "xmclab[{extra}]")'
