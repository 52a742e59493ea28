"""Statistics of a data set, and what is remarked about it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset, Split
from xmclab.data import open_dataset
from xmclab.errors import ConfigError, PluginError
from xmclab.host.registry import default_registry
from xmclab_datatools.stats import plot, remarks, statistics, zipf_exponent


def small() -> Dataset:
    """Three training queries (one text twice, one without a label), two test queries, four labels."""
    train = sp.csr_array(np.float32([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]))
    test = sp.csr_array(np.float32([[1, 0, 1, 0], [0, 0, 1, 0]]))
    hidden = sp.csr_array(np.float32([[1, 1, 0, 0], [0, 0, 0, 0]]))
    return Dataset(
        "small",
        Split(["red apple", "red apple", " "], ["1", "2", "3"], train, sp.csr_array((3, 4), dtype=np.float32)),
        Split(["red apple", "pear"], ["4", "5"], test, hidden),
        ["a", "a b c", "a", "d"],
        ["one", "two", "one", "four"],
        "sha",
    )


def test_every_number() -> None:
    assert statistics(small()) == {
        "name": "small",
        "sha256": "sha",
        "train": {
            "queries": 3,
            "pairs": 3,
            "labels_per_query": {"mean": 1.0, "median": 1.0, "max": 2},
            "without_label": 1,
            "filter_pairs": 0,
            "words": {"mean": 4 / 3, "median": 2.0, "max": 2},
            "empty_texts": 1,
            "duplicate_texts": 1,
            "texts_of_labels": 0,
            "own_labels_listed": 0,
            "own_labels_left_out": 0,
            "own_labels_unlisted": 0,
        },
        "test": {
            "queries": 2,
            "pairs": 3,
            "labels_per_query": {"mean": 1.5, "median": 1.5, "max": 2},
            "without_label": 0,
            "filter_pairs": 2,
            "words": {"mean": 1.5, "median": 1.5, "max": 2},
            "empty_texts": 0,
            "duplicate_texts": 0,
            "texts_of_labels": 0,
            "own_labels_listed": 0,
            "own_labels_left_out": 0,
            "own_labels_unlisted": 0,
            "texts_of_training": 1,
            "true_pairs_filtered": 1,
        },
        "labels": {
            "number": 4,
            "queries_per_label": {"mean": 0.75, "median": 0.5, "max": 2},
            "without_training_query": 2,
            "with_one_training_query": 1,
            "zipf_exponent": pytest.approx(1.0),
            "words": {"mean": 1.5, "median": 1.0, "max": 3},
            "empty_texts": 0,
            "duplicate_texts": 1,
            "duplicate_names": 1,
        },
        "bands": {
            "head": {"labels": 0, "train_pairs": 0, "test_pairs": 0},
            "torso": {"labels": 0, "train_pairs": 0, "test_pairs": 0},
            "tail": {"labels": 4, "train_pairs": 3, "test_pairs": 3},
        },
    }


def test_queries_with_the_text_of_a_label_are_counted() -> None:
    made = small()
    train = dataclasses.replace(made.train, texts=["a", "d", " "])  # "a" is two labels, the first of them true
    test = dataclasses.replace(made.test, texts=["a b c", "d"])  # the pair with "a b c" is filtered
    found = statistics(dataclasses.replace(made, train=train, test=test))
    names = ["texts_of_labels", "own_labels_listed", "own_labels_left_out", "own_labels_unlisted"]
    assert [found["train"][name] for name in names] == [2, 1, 0, 2]
    assert [found["test"][name] for name in names] == [2, 0, 1, 1]


def test_remarks() -> None:
    assert list(remarks(statistics(small()))) == [
        "1 test queries have the same text as a training query",
        "1 true test pairs are in the filter file: they can never be predicted",
        "2 labels have no training query: only their text can match them",
        "1 labels share their name with another label: predictions by name cannot tell them apart",
    ]


def test_embedded_sets_need_no_remark() -> None:
    assert list(remarks(statistics(open_dataset("tiny", "title", default_registry())))) == []


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_the_exponent_of_an_exact_curve(exponent: float) -> None:
    frequencies = np.random.default_rng(0).permutation(np.round(1e9 * np.arange(1, 2000.0) ** -exponent)).astype(int)
    assert zipf_exponent(frequencies) == pytest.approx(exponent, abs=1e-3)


def test_no_exponent_of_one_label() -> None:
    assert zipf_exponent(np.array([0, 5])) is None


@pytest.mark.parametrize(("name", "start"), [("c.png", b"\x89PNG"), ("c.PDF", b"%PDF"), ("c.svg", b"<?xml")])
def test_the_ending_says_what_plot_writes(tmp_path: Path, name: str, start: bytes) -> None:
    plot(small(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["curve.xyz", "curve"])
def test_plot_refuses_an_ending_that_it_does_not_know(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"--plot .*{name}: not an image format \(known: .*pdf.*png"):
        plot(small(), tmp_path / name)
    assert not (tmp_path / name).exists()


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PluginError, match=r'pip install "xmclab\[plot\]"'):
        plot(small(), tmp_path / "curve.png")
