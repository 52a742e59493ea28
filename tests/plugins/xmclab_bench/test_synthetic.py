"""Made-up data: of the size asked for, of the law asked for, and the same for the same seed."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmclab.api import Dataset
from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab_bench import synthetic
from xmclab_bench.synthetic import LabelDraw, Recipe, make_synthetic

SMALL = Recipe(train=300, test=40, labels=60, topics=6, labels_per_query=2.5, words=7, exponent=1.0, seed=0)


def made(folder: Path, recipe: Recipe) -> Dataset:
    folder.mkdir()
    make_synthetic(folder, recipe)
    return open_dataset(str(folder), "title", default_registry())


def test_sizes_and_topics(tmp_path: Path) -> None:
    data = made(tmp_path / "data", SMALL)
    assert (len(data.train), len(data.test), data.num_labels) == (300, 40, 60)
    assert {len(text.split()) for text in data.train.texts} == {7}
    assert (data.train.names[7], data.test.names[7], data.label_names[7]) == ("q7", "t7", "l7")
    assert len(set(data.label_texts)) == 60
    for split in (data.train, data.test):
        for row in range(len(split)):
            labels = split.targets_NL.indices[split.targets_NL.indptr[row] : split.targets_NL.indptr[row + 1]]
            assert len(set(labels % 6)) == 1


@pytest.mark.parametrize(("train", "labels"), [(1, 1), (1, 1000), (5, 2)])
def test_any_size(tmp_path: Path, train: int, labels: int) -> None:
    data = made(tmp_path / "data", dataclasses.replace(SMALL, train=train, test=1, labels=labels, topics=0))
    assert (len(data.train), data.num_labels) == (train, labels)
    assert np.diff(data.train.targets_NL.indptr).min() >= 1


def test_queries_tell_their_labels(tmp_path: Path) -> None:
    data = made(tmp_path / "data", SMALL)
    own = [set(text.split()[:2]) for text in data.label_texts]
    told = [
        any(word in own[label] for word in text.split())
        for row, text in enumerate(data.train.texts)
        for label in data.train.targets_NL[[row]].indices[:1]
    ]
    assert np.mean(told) > 0.5


def test_the_seed_decides_and_the_halves_differ(tmp_path: Path) -> None:
    one, again, other = (
        made(tmp_path / name, dataclasses.replace(SMALL, seed=seed)) for name, seed in (("1", 1), ("2", 1), ("3", 2))
    )
    assert one.fingerprint == again.fingerprint
    assert one.train.texts != other.train.texts
    assert one.test.texts != one.train.texts[: len(one.test)]


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.3])
def test_every_draw_follows_the_law(exponent: float) -> None:
    recipe = dataclasses.replace(SMALL, exponent=exponent, labels=50, topics=7, labels_per_query=4.0)
    draws = 200_000
    labels_BM, numbers_B = LabelDraw(recipe)(draws, np.random.default_rng(0))
    law = np.arange(1, 51) ** -exponent
    law /= law.sum()
    found = np.bincount(labels_BM[:, 0], minlength=50) / draws
    np.testing.assert_allclose(found, law, atol=5 * np.sqrt(law.max() / draws))
    for row, number in zip(labels_BM[:1000].tolist(), numbers_B[:1000].tolist(), strict=True):
        assert len(set(row[:number])) == number


def test_memory_does_not_grow_with_the_number_of_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CHUNK", 256)
    peaks = []
    for number in (256, 256, 4096):
        tracemalloc.start()
        make_synthetic(tmp_path, dataclasses.replace(SMALL, train=number))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1]


def test_the_command(call: Any, tmp_path: Path) -> None:
    code, out, err = call("synthetic", tmp_path / "big", "--train", "50", "--test", "5", "--labels", "9")
    assert (code, err) == (0, "")
    assert out == f"{tmp_path / 'big'}: 50 training queries, 5 test queries, 9 labels\n"
    assert call("data", "check", tmp_path / "big")[0] == 0
    assert call("synthetic", tmp_path / "x", "--train", "0")[0] == 2
