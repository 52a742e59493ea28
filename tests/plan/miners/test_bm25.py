"""BM25 against a double loop in float64, and what a run does without the package."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset, Keys, Split
from xmclab.errors import ConfigError
from xmclab.plan.miners import bm25
from xmclab.plan.miners.bm25 import Bm25Miner, words_of

WORDS = ["Lib", "python3", "for", "the", "X_11", "édition", "tool", "c++", "a", "-", "devel"]


def texts(rng: np.random.Generator, number: int) -> list[str]:
    chance = 1 / np.arange(1, len(WORDS) + 1)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 9), p=chance / chance.sum())) for _ in range(number)]


def naive(query: str, labels: list[str]) -> list[float]:
    """The score of each label, word by word."""
    split = [words_of(label) for label in labels]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        score = 0.0
        for word in words_of(query):
            having = sum(word in other for other in split)
            times = words.count(word)
            if times:
                rarity = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
                score += rarity * times / (times + 1.5 * (1 - 0.75 + 0.75 * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("at_once", [1, 4, 1024])
@pytest.mark.parametrize("depth", [1, 4, 100])
def test_the_ranking_is_that_of_the_formula(monkeypatch: pytest.MonkeyPatch, depth: int, at_once: int) -> None:
    monkeypatch.setattr(bm25, "QUERIES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    queries, labels = texts(rng, 23), texts(rng, 31)
    exclude = rng.random((23, 31)) < 0.2
    exclude[3], exclude[4] = True, False
    found = Bm25Miner(depth=depth).retrieved(queries, labels, sp.csr_array(exclude))
    assert found.shape == (23, 31)
    for row, query in enumerate(queries):
        expected = np.round(np.where(exclude[row], 0, naive(query, labels)), 5)
        order = sorted(np.flatnonzero(expected), key=lambda label: (-expected[label], label))[:depth]
        ids, scores = (x[found.indptr[row] : found.indptr[row + 1]] for x in (found.indices, found.data))
        assert ids.tolist() == order
        np.testing.assert_allclose(scores, expected[order], atol=2e-5)


def test_words_are_letters_digits_and_underscores_in_lower_case() -> None:
    assert words_of("Édition X_11: C++-tools, a  b") == ["édition", "x_11", "c", "tools", "a", "b"]


@pytest.mark.parametrize("labels", [["", "-"], ["a", "b"]])
def test_texts_without_a_common_word_have_no_negatives(labels: list[str]) -> None:
    none = sp.csr_array((2, 2), dtype=np.float32)
    train = Split(["x", ""], ["0", "1"], none, none)
    miner = Bm25Miner()
    miner.prepare(Dataset("", train, train, labels, labels, ""), none, Keys(0))
    assert (miner.sample(np.arange(2), 2, none, np.random.default_rng(0)) == -1).all()


def test_nothing_is_shown_and_draws_come_from_the_best(
    small_trainer: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = small_trainer("miner=bm25", "miner.depth=2", "pool.eta=2")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert trainer.miner.lengths_N.max() == 2
    assert (trainer.miner.lengths_N == 2).mean() > 0.9
    drawn = trainer.miner.sample(trainer.rows_N[:1], 2, trainer.exclude_NL, np.random.default_rng(0))[0]
    scores = np.array(naive(trainer.data.train.texts[trainer.rows_N[0]], list(trainer.data.label_texts)))
    scores[trainer.exclude_NL[[trainer.rows_N[0]]].indices] = 0
    assert sorted(scores[drawn]) == pytest.approx(sorted(scores)[-2:])


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ConfigError, match=r'pip install "xmclab\[bm25\]"'):
        Bm25Miner()
