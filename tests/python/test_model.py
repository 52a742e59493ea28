"""A model in Python predicts what the command predicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xmclab as xl
from xmclab.errors import ConfigError, StorageError

TEXTS = ["plot functions", "music player"]


@pytest.fixture(scope="module")
def model(small_run: Path) -> xl.Model:
    return xl.load(small_run, device="cpu")


def test_predictions_are_those_of_the_command(model: xl.Model, small_run: Path, call: Callable[..., Any]) -> None:
    _, out, _ = call("predict", small_run, "--text", TEXTS[0], "--text", TEXTS[1], "-k", 3, "--json")
    expected = [json.loads(line)["labels"] for line in out.splitlines()]
    found = model.predict(TEXTS, k=3)
    assert [[(each.id, each.name, each.text) for each in best] for best in found] == [
        [(each["label"], each["name"], each["text"]) for each in best] for best in expected
    ]
    assert [[each.score for each in best] for best in found] == [[each["score"] for each in best] for best in expected]


def test_a_single_text_has_a_single_answer(model: xl.Model) -> None:
    assert model.predict(TEXTS[0], k=2) == model.predict(TEXTS[:1], k=2)[0]
    assert isinstance(model.predict(TEXTS[0], k=1)[0].name, str)


def test_arrays_are_the_same_in_bulk(model: xl.Model) -> None:
    ranking = model.rank(iter(TEXTS * 2000), k=4, head="de")
    assert ranking.ids_NK.shape == ranking.scores_NK.shape == (4000, 4)
    assert ranking.ids_NK[-1].tolist() == [each.id for each in model.predict(TEXTS[1], k=4, head="de")]
    assert model.rank(TEXTS[0], k=4).ids_NK.shape == (1, 4)
    assert model.rank([], k=4).ids_NK.shape == (0, 4)
    assert np.isfinite(model.rank(TEXTS, k=10**9).scores_NK).all(), "more than there are: all"


def test_bad_questions_are_refused(model: xl.Model) -> None:
    with pytest.raises(ConfigError, match=r"^head=clff: .*did you mean 'clf'"):
        model.predict("x", head="clff")
    with pytest.raises(ConfigError, match="k=0: must be at least 1"):
        model.predict("x", k=0)
    with pytest.raises(ConfigError, match="text 1: not a text: None"):
        model.predict(["x", None])  # type: ignore[list-item]


def test_labels_can_be_added(small_run: Path) -> None:
    model = xl.load(str(small_run), device="cpu")
    count = len(model.labels)
    model.add_labels(["plot functions", ("named", "a web server")])
    model.add_labels("one text")
    assert list(model.labels.names[count:]) == ["plot functions", "named", "one text"]
    assert model.predict("plot functions", k=1, head="de")[0].id == count


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="not a run folder"):
        xl.load(tmp_path)


def test_an_export_answers_alike(model: xl.Model, small_run: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    assert call("export", small_run, "--to", tmp_path / "out")[0] == 0
    exported = xl.load(tmp_path / "out", device="cpu")
    assert [each.id for each in exported.predict(TEXTS[0])] == [each.id for each in model.predict(TEXTS[0])]
    assert "labels, searched by de" in repr(exported)
