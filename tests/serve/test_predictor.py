"""Ranking labels with a trained model: against plain products of vectors, whatever the blocks; new labels by text."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from xmclab.api import Ranking
from xmclab.data import open_dataset
from xmclab.errors import ConfigError, DataError, StorageError
from xmclab.plugins import default_registry
from xmclab.serve import predictor as module
from xmclab.serve.open import open_predictor
from xmclab.serve.predictor import Predictor, merged
from xmclab.train.store import Labels

TEXTS = ["plot functions", "a database for the web", "", "music player", "python library", "perl"]


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


@pytest.mark.parametrize(("search", "factor"), [("de", 1), ("de+clf", 2)])
def test_new_labels_are_ranked_by_the_dual_encoder(predictor: Predictor, search: str, factor: int) -> None:
    """With both heads its cosine counts twice, in place of the classifier that they do not have."""
    count = len(predictor.labels)
    before = scores_of(predictor, TEXTS)
    predictor.add_labels(Labels(["one"], ["plot functions"]))
    predictor.add_labels(Labels(["two", "three"], ["a music player", "web server"]))
    assert list(predictor.labels.names[count:]) == ["one", "two", "three"]
    ranking = predictor.rank(TEXTS, count + 3, search)
    assert np.sort(ranking.ids_NK, axis=1).tolist() == [list(range(count + 3))] * len(TEXTS)
    new = scores_of(predictor_without_table(predictor), TEXTS)["de"][:, count:]
    expected = np.concatenate([before[search], factor * new], axis=1)
    np.testing.assert_allclose(ranking.scores_NK, np.take_along_axis(expected, ranking.ids_NK, axis=1), atol=1e-6)
    assert (np.diff(ranking.scores_NK, axis=1) <= 0).all()
    assert ranking.scores_NK[0][ranking.ids_NK[0] == count] == pytest.approx(factor, abs=1e-6)  # its own text


def predictor_without_table(predictor: Predictor) -> Predictor:
    """So that label vectors are asked for beyond the rows of the table."""
    predictor.model.num_labels = len(predictor.labels)
    table = predictor.model.head("clf").psi
    padded = torch.zeros(len(predictor.labels), table.weight.shape[1])
    padded[: len(table.weight)] = table.weight.detach()
    table.weight = torch.nn.Parameter(padded)
    return predictor


def test_the_classifier_has_no_rows_for_new_labels(predictor: Predictor) -> None:
    predictor.add_labels(Labels(["new"], ["a new label"]))
    with pytest.raises(ConfigError, match="no rows for them"):
        predictor.rank(TEXTS, 3, "clf")


def test_merged_rankings_are_sorted_and_padded() -> None:
    first = Ranking(np.array([[4, 1, -1]]), np.array([[0.9, 0.5, -np.inf]], np.float32))
    second = Ranking(np.array([[7, 8, -1]]), np.array([[0.5, 0.1, -np.inf]], np.float32))
    assert merged(first, second).ids_NK.tolist() == [[4, 1, 7]]
    nothing = Ranking(np.full((1, 3), -1), np.full((1, 3), -np.inf, np.float32))
    assert merged(first, nothing).ids_NK.tolist() == [[4, 1, -1]]


def test_parts_that_only_training_needs_need_not_be_at_hand(small_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    config = (folder / "config.yaml").read_text()
    assert "expression: ds+bce" in config or "clf: ds+bce" in config
    (folder / "config.yaml").write_text(config.replace("ds+bce", "homemade+bce"))
    assert open_predictor(folder, default_registry(), "cpu").rank(TEXTS[:1], 1, "de").ids_NK.shape == (1, 1)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.yaml", "result.json", "labels.jsonl"])
def test_a_folder_that_is_no_finished_run_is_refused(small_run: Path, tmp_path: Path, missing: str) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / missing).unlink()
    with pytest.raises(StorageError, match=missing):
        open_predictor(folder, default_registry(), "cpu")


@pytest.mark.parametrize("name", ["model.safetensors", "result.json", "labels.jsonl", "encoder/features.json"])
def test_a_truncated_file_is_named(small_run: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(small_run, tmp_path / "run")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(StorageError, match="damaged"):
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
