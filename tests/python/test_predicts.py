"""A run and a model answer alike, from memory and from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import xmclab as xl
from xmclab.errors import StorageError
from xmclab.host.registry import default_registry

TEXTS = ["plot functions", "music player"]


@pytest.fixture(scope="module")
def model(small_run: Path) -> xl.Model:
    return xl.load(small_run, device="cpu")


def test_a_run_answers_as_its_model(model: xl.Model, small_run: Path) -> None:
    run = xl.Run(small_run, {}, {}, {"config": {"device": "cpu"}}, default_registry())
    assert run.predict(TEXTS, k=2, threshold=0.1) == model.predict(TEXTS, k=2, threshold=0.1)
    assert run.rank(TEXTS[:1], head="de").ids_NK.tolist() == model.rank(TEXTS[:1], head="de").ids_NK.tolist()


def test_low_scores_can_be_left_out(model: xl.Model) -> None:
    whole = model.predict(TEXTS[0], k=6)
    assert model.predict(TEXTS[0], k=6, threshold=whole[2].score) == whole[:3]
    assert model.predict(TEXTS[0], threshold=1e9) == []


def test_files_are_answered_as_texts_are(model: xl.Model, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("uid,query\nx,plot functions\ny,music player\n")
    assert model.predict_file(tmp_path / "q.csv", tmp_path / "a.jsonl", k=3, head="clf") == 2
    found = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [record["id"] for record in found] == ["x", "y"]
    assert [[label["name"] for label in record["labels"]] for record in found] == [
        [each.name for each in best] for best in model.predict(TEXTS, k=3, head="clf")
    ]
    with pytest.raises(StorageError, match="exists"):
        model.predict_file(tmp_path / "q.csv", tmp_path / "a.jsonl")
