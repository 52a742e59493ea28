"""The model card of an export: its numbers, and that its snippets run as they are."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from xmclab.data import open_dataset
from xmclab.evaluation.bootstrap import intervals
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.registry import default_registry
from xmclab.keys import Keys
from xmclab.runs.store import Labels
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor
from xmclab.serve.predictor import Predictor

Call = Callable[..., tuple[int, str, str]]
BLOCK = re.compile(r"^(`{3,})(\w+)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def predictor(small_run: Path) -> Predictor:
    return open_predictor(small_run, default_registry(), "cpu")


def write(predictor: Predictor, run: Path, to: Path, search: str | None = None) -> str:
    write_export(predictor, run, to, None, search)
    return (to / "README.md").read_text(encoding="utf-8")


def blocks(card: str, language: str) -> list[str]:
    return [text for _, kind, text in BLOCK.findall(card) if kind == language]


@pytest.mark.parametrize("index", ["faiss", "numpy"])
def test_the_snippets_run_and_agree(
    predictor: Predictor, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, index: str
) -> None:
    if index == "numpy":
        monkeypatch.setattr("xmclab.serve.export._write_index", lambda *_: None)
    card = write(predictor, small_run, tmp_path / "my model", "de+clf")
    monkeypatch.chdir(tmp_path)
    [command] = blocks(card, "console")
    code, out, _ = call(*shlex.split(command.removeprefix("$ xmclab ")), "--json")
    assert code == 0
    expected = [(label["name"], label["score"]) for label in json.loads(out)["labels"]]
    assert len(expected) == 5
    python, theirs = blocks(card, "python")
    assert ("import faiss" in theirs) == (index == "faiss")
    assert "trust_remote_code=True" in theirs
    for snippet in (python, theirs):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet, "card", "exec"), {})
        lines = [line.rsplit(" ", 1) for line in printed.getvalue().splitlines()]
        assert [name for name, _ in lines] == [name for name, _ in expected]
        assert [float(score) for _, score in lines] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_the_card_has_data_config_and_metrics_with_intervals(
    predictor: Predictor, small_run: Path, tmp_path: Path
) -> None:
    card = write(predictor, small_run, tmp_path / "export", "clf")
    result = json.loads((small_run / "result.json").read_text())
    assert f"| fingerprint (sha256) | `{result['data']['sha256']}` |" in card
    assert "| training queries | 1,262 |" in card
    [config] = blocks(card, "yaml")
    assert yaml.safe_load(config) == yaml.safe_load((small_run / "config.yaml").read_text())
    row = next(line for line in card.splitlines() if line.startswith("| P@5 |"))
    values = [float(number) for number in re.findall(r"\d+\.\d+", row)]
    assert values[0::3] == [round(result["metrics"][search]["P@5"], 2) for search in ("de", "clf", "de+clf")]
    data = open_dataset("tiny", "title", default_registry())
    ranking = predictor.rank_all(data.test.texts, 100, ["clf"], data.test.filter_NL)["clf"]
    evaluator = Evaluator.of_data(data)
    low, high = intervals(ranking, data.test.targets_NL, evaluator.weights_L, ["P@5"], 1000, Keys(1).rng("bootstrap"))[
        "P@5"
    ]
    assert values[4:6] == pytest.approx([low, high], abs=0.15)  # by other draws
    assert low < result["metrics"]["clf"]["P@5"] < high

    _, front, _ = card.split("---\n", 2)
    document = yaml.safe_load(front)
    assert document["library_name"] == "sentence-transformers"
    assert "license" not in document
    [found] = document["model-index"][0]["results"]
    shown = {metric["type"]: metric["value"] for metric in found["metrics"]}
    assert shown["R@100"] == round(result["metrics"]["clf"]["R@100"], 2)


def test_without_points_the_card_has_no_intervals(predictor: Predictor, small_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    (run / "points.npz").unlink()
    card = write(predictor, run, tmp_path / "export")
    assert "The run folder has no points.npz, so there are no intervals." in card
    assert re.search(r"^\| P@1 \| \d+\.\d\d \| \d+\.\d\d \| \d+\.\d\d \|$", card, re.MULTILINE)


def test_names_are_not_markup(small_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    evil = "`](http://x) | <b>\x1b[31m\n# title ```"
    result["data"]["name"] = evil
    (run / "result.json").write_text(json.dumps(result))
    (run / "config.yaml").write_text(f"# {'`' * 4}\n" + (run / "config.yaml").read_text())
    predictor = open_predictor(small_run, default_registry(), "cpu")
    predictor.add_labels(Labels(["new"], ["'; rm -rf ~ #"]))
    card = write(predictor, run, tmp_path / "export")
    assert "\x1b" not in card
    assert "\n# title" not in card
    row = next(line for line in card.splitlines() if line.startswith("| name |"))
    assert row.count("`") == 2
    assert row.count("|") == 3
    assert len(blocks(card, "yaml")) == 1
    assert card.rstrip().endswith("`" * 5)
    assert "| labels added later, by their texts | 1 |" in card
    assert "Measured without the labels that were added later." in card
    document = yaml.safe_load(card.split("---\n", 2)[1])
    assert document["model-index"][0]["results"][0]["dataset"]["name"].startswith("`](http://x)")


def test_a_text_with_quotes_is_no_example(predictor: Predictor) -> None:
    from xmclab.serve.card import ANY_TEXT, _example

    assert _example(Labels(["a", "b"], ["it's\n", "plot (2D) functions"])) == "plot (2D) functions"
    assert _example(Labels(["a"], ['"; import os #'])) == ANY_TEXT
    assert np.isfinite(predictor.rank([ANY_TEXT], 1, "de").scores_NK).all()
