"""Ranking labels with a trained model: against plain products of vectors, whatever the blocks; new labels by text."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from xmclab.data import open_dataset
from xmclab.errors import ConfigError, DataError, StorageError
from xmclab.host.registry import default_registry
from xmclab.plan.indexes.auto import Auto
from xmclab.plan.indexes.faiss import Faiss
from xmclab.runs.run import run
from xmclab.runs.store import Labels, load_indexes, save_indexes
from xmclab.serve import predictor as module
from xmclab.serve.open import open_predictor
from xmclab.serve.predictor import Predictor

TEXTS = ["plot functions", "a database for the web", "", "music player", "python library", "perl"]
SEARCHES = ["de", "clf", "de+clf"]


@pytest.fixture
def predictor(small_run: Path) -> Predictor:
    return open_predictor(small_run, default_registry(), "cpu")


def scores_of(predictor: Predictor, texts: list[str]) -> dict[str, np.ndarray]:
    """The score of every label by every search, from the definition: cosines, and their sum."""
    model = predictor.model
    queries = model.query_vectors(model.encoder.tokenise(texts), 1024)
    labels = model.label_vectors(model.encoder.tokenise(predictor.labels.texts), 1024)
    scores = {head: (queries[head] @ labels[head].T).numpy() for head in ("de", "clf")}
    return {**scores, "de+clf": scores["de"] + scores["clf"]}


def test_a_run_keeps_the_names_and_texts_of_its_labels(predictor: Predictor) -> None:
    data = open_dataset("tiny", "title", default_registry())
    assert list(predictor.labels.names) == list(data.label_names)
    assert list(predictor.labels.texts) == list(data.label_texts)


@pytest.mark.parametrize("search", ["de", "clf", "de+clf"])
def test_labels_come_by_descending_score(predictor: Predictor, search: str) -> None:
    ranking = predictor.rank(TEXTS, 10, search)
    expected = scores_of(predictor, TEXTS)[search]
    np.testing.assert_allclose(ranking.scores_NK, -np.sort(-expected, axis=1)[:, :10], atol=1e-6)
    np.testing.assert_allclose(ranking.scores_NK, np.take_along_axis(expected, ranking.ids_NK, axis=1), atol=1e-6)


def test_both_heads_are_searched_unless_one_is_named(predictor: Predictor) -> None:
    assert predictor.searches == ("de", "clf", "de+clf")
    assert predictor.pick_search(None) == "de+clf"
    assert predictor.pick_search("clf") == "clf"
    with pytest.raises(ConfigError, match="did you mean 'clf'"):
        predictor.pick_search("clff")


def test_blocks_do_not_change_the_answers(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = predictor.rank(TEXTS, 7, "de+clf")
    monkeypatch.setattr(module, "CHUNKS_OF_A_BLOCK", 1)
    monkeypatch.setattr(Predictor, "_chunk", 2)
    blocks = list(predictor.answer(iter(TEXTS), 7, "de+clf"))
    assert [texts for texts, _ in blocks] == [TEXTS[0:2], TEXTS[2:4], TEXTS[4:6]]
    assert np.concatenate([ranking.ids_NK for _, ranking in blocks]).tolist() == whole.ids_NK.tolist()
    np.testing.assert_allclose(np.concatenate([r.scores_NK for _, r in blocks]), whole.scores_NK, atol=1e-6)


def test_texts_are_read_only_as_far_as_answers_are_taken(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNKS_OF_A_BLOCK", 1)
    monkeypatch.setattr(Predictor, "_chunk", 3)
    taken = []
    answers = predictor.answer((taken.append(number) or f"text {number}" for number in range(10**9)), 1, "de")
    next(answers)
    assert len(taken) == 3


@pytest.mark.parametrize("search", ["de", "de+clf"])
def test_new_labels_are_ranked_by_the_dual_encoder(predictor: Predictor, search: str) -> None:
    """With both heads, the mean of the classifier over the ten labels that the dual encoder ranks first is added."""
    count = len(predictor.labels)
    old = scores_of(predictor, TEXTS)
    new = ["plot functions", "a music player", "web server"]
    predictor.add_labels(Labels(["one"], new[:1]))
    predictor.add_labels(Labels(["two", "three"], new[1:]))
    assert list(predictor.labels.names[count:]) == ["one", "two", "three"]

    model = predictor.model
    queries, labels = (model.encoder.tokenise(texts) for texts in (TEXTS, new))
    cosines = (model.query_vectors(queries, 9, ["de"])["de"] @ model.label_vectors(labels, 9, ["de"])["de"].T).numpy()
    expected = np.concatenate([old[search], cosines], axis=1)
    if search == "de+clf":
        for row in range(len(TEXTS)):
            nearest = sorted(range(count), key=lambda label: -old["de"][row, label])[:10]
            expected[row, count:] += np.mean([old["clf"][row, label] for label in nearest])

    ranking = predictor.rank(TEXTS, count + 3, search)
    assert np.sort(ranking.ids_NK, axis=1).tolist() == [list(range(count + 3))] * len(TEXTS)
    np.testing.assert_allclose(ranking.scores_NK, np.take_along_axis(expected, ranking.ids_NK, axis=1), atol=1e-6)
    assert (np.diff(ranking.scores_NK, axis=1) <= 0).all()


def test_with_new_labels_the_heads_alone_are_searched_by_default(
    tmp_path: Path, small_config: Callable[..., Any]
) -> None:
    folder = run(small_config("search=neighbours", "epochs=1"), tmp_path / "run", Console(quiet=True)).folder
    predictor = open_predictor(folder, default_registry(), "cpu")
    assert predictor.pick_search(None) == "de+clf+nn"
    predictor.add_labels(Labels(["new"], ["a new label"]))
    assert predictor.pick_search(None) == "de+clf"
    everything = predictor.rank(TEXTS, len(predictor.labels), "de+clf+nn").ids_NK
    assert np.sort(everything, axis=1).tolist() == [list(range(len(predictor.labels)))] * len(TEXTS)


def test_the_classifier_has_no_rows_for_new_labels(predictor: Predictor) -> None:
    predictor.add_labels(Labels(["new"], ["a new label"]))
    with pytest.raises(ConfigError, match="no rows for them"):
        predictor.rank(TEXTS, 3, "clf")


LISTS = {"name": "faiss", "options": {"type": "ivf", "lists": 7, "probes": 2}, "recall": 0.5}


@pytest.fixture
def run_with_lists(small_run: Path, tmp_path: Path) -> Path:
    """A run that chose inverted lists for `de` and exact search for the rest."""
    folder = shutil.copytree(small_run, tmp_path / "run")
    assert {use: report["name"] for use, report in load_indexes(folder).items()} == dict.fromkeys(SEARCHES, "exact")
    save_indexes(folder, {"de": LISTS})
    return folder


def test_the_index_that_the_run_chose_is_used_again(run_with_lists: Path, small_run: Path) -> None:
    found = open_predictor(run_with_lists, default_registry(), "cpu")
    names = {search: type(found.space.index(search)).__name__ for search in SEARCHES}
    assert names == {"de": "Faiss", "clf": "Exact", "de+clf": "Exact"}
    index = found.space.index("de")
    assert isinstance(index, Faiss)
    assert (index.type, index.count, index.probes) == ("ivf", 7, 2)
    whole = open_predictor(small_run, default_registry(), "cpu")
    assert not np.array_equal(found.rank(TEXTS, 100, "de").ids_NK, whole.rank(TEXTS, 100, "de").ids_NK)


def test_without_faiss_the_search_of_a_run_is_exact(
    run_with_lists: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    found = open_predictor(run_with_lists, default_registry(), "cpu").rank(TEXTS, 10, "de")
    assert np.array_equal(found.ids_NK, predictor.rank(TEXTS, 10, "de").ids_NK)


def test_other_labels_are_searched_as_their_number_suggests(run_with_lists: Path) -> None:
    predictor = open_predictor(run_with_lists, default_registry(), "cpu").for_labels(
        Labels(["a", "b"], ["perl", "web"])
    )
    assert isinstance(predictor.space.index("de"), Auto)


def test_parts_that_only_training_needs_need_not_be_at_hand(small_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    config = (folder / "config.yaml").read_text()
    assert "expression: ds+bce" in config or "clf: ds+bce" in config
    config = config.replace("ds+bce", "homemade+bce")
    for slot, name in (("reader", "lf_json"), ("baseline", "none")):
        assert f"{slot}:\n  name: {name}\n" in config
        config = config.replace(f"{slot}:\n  name: {name}\n", f"{slot}:\n  name: homemade\n  power: 3\n")
    (folder / "config.yaml").write_text(config)
    (folder / "manifest.json").unlink()  # it would not match
    assert open_predictor(folder, default_registry(), "cpu").rank(TEXTS[:1], 1, "de").ids_NK.shape == (1, 1)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.yaml", "labels.jsonl"])
def test_a_folder_without_a_model_is_refused(small_run: Path, tmp_path: Path, missing: str) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / missing).unlink()
    with pytest.raises(StorageError, match=missing):
        open_predictor(folder, default_registry(), "cpu")


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "config.yaml",
        "result.json",
        "labels.jsonl",
        "encoder/features.json",
        "indexes.json",
        "manifest.json",
    ],
)
def test_a_truncated_file_is_named(small_run: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(StorageError, match=f"{name}: (damaged|truncated or changed)"):
        open_predictor(folder, default_registry(), "cpu")


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "labels.jsonl", "encoder/features.json"])
def test_a_flipped_bit_is_noticed(small_run: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    content = bytearray((folder / name).read_bytes())
    content[-5] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(StorageError, match=f"{name}: changed: its sha256 does not match manifest.json"):
        open_predictor(folder, default_registry(), "cpu")


def test_a_run_that_was_trained_and_not_evaluated_can_be_used(small_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "search", ignore_errors=True)
    found, expected = (
        open_predictor(path, default_registry(), "cpu").rank(TEXTS, 5, "de") for path in (folder, small_run)
    )
    assert np.array_equal(found.ids_NK, expected.ids_NK)


def test_a_label_too_few_is_noticed(small_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    lines = (folder / "labels.jsonl").read_text().splitlines(keepends=True)
    (folder / "labels.jsonl").write_text("".join(lines[:-1]))
    (folder / "manifest.json").unlink()  # as in a run of an earlier version
    with pytest.raises(StorageError, match="921 labels, but the model has 922"):
        open_predictor(folder, default_registry(), "cpu")


def test_vectors_that_are_not_finite_are_refused_with_their_rows(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNKS_OF_A_BLOCK", 1)
    monkeypatch.setattr(Predictor, "_chunk", 2)
    normal = predictor.model.query_vectors

    def broken(tokens, chunk, names):  # type: ignore[no-untyped-def]
        found = normal(tokens, chunk, names)
        if len(tokens) == 1:
            found["de"] = found["de"] * torch.nan
        return found

    monkeypatch.setattr(predictor.model, "query_vectors", broken)
    with pytest.raises(DataError, match="query 4: 1 of 1 vectors"):
        list(predictor.answer(TEXTS[:5], 1, "de"))


def test_texts_without_a_known_word_are_counted_over_all_blocks(predictor: Predictor) -> None:
    texts = ["", "plot functions", "\u4e00\u4e8c", "   "] * 2
    assert sum(len(block) for block, _ in predictor.answer(texts, 1, "de")) == len(texts)
    assert predictor.without_word == 6


def test_texts_are_encoded_in_the_precision_of_the_run(small_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / "manifest.json").unlink()
    environment = json.loads((folder / "environment.json").read_text())
    found = []
    for precision in ("float32", "bfloat16"):
        environment["numerics"]["precision"] = precision
        (folder / "environment.json").write_text(json.dumps(environment))
        found.append(open_predictor(folder, default_registry(), "cpu").model.precision.half)
    assert found == [False, True]
    del environment["numerics"]  # as in older runs
    (folder / "environment.json").write_text(json.dumps(environment))
    assert not open_predictor(folder, default_registry(), "cpu").model.precision.half
