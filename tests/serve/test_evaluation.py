"""`eval`: the numbers of the run to the last digit, and other data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run
from xmclab.serve.evaluation import evaluate_folder


def test_the_metrics_of_a_run_are_found_again_to_the_last_digit(small_run: Path) -> None:
    notes: list[str] = []
    found = evaluate_folder(small_run, None, default_registry(), "cpu", notes.append)
    assert found.metrics == json.loads((small_run / "result.json").read_text())["metrics"]
    assert list(found.metrics) == ["de", "clf", "de+clf"]
    assert found.document["data"]["name"] == "tiny"
    assert notes == []


def test_lists_that_the_run_chose_are_found_again_to_the_last_digit(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("xmclab.plan.indexes.auto.LISTS_FROM", 0)
        folder = train(tmp_path / "run", "index.recall=0")
    found = evaluate_folder(folder, None, default_registry(), "cpu", print)
    assert found.metrics == json.loads((folder / "result.json").read_text())["metrics"]
    (folder / "indexes.json").unlink()  # then the few queries are compared with every label
    exact = evaluate_folder(folder, None, default_registry(), "cpu", print)
    assert exact.metrics != found.metrics


def test_a_table_is_measured_without_the_pairs_that_its_run_left_out(tmp_path: Path) -> None:
    """Half of its queries are labels of others."""
    rows = "".join(f"word{row},word{row + 1}|word{row % 5}\n" for row in range(5, 45))
    (tmp_path / "own.csv").write_text(f"query,labels\n{rows}")
    quick = ["recipe=unidec", "encoder.dim=64", "head.de.dim=64", "head.clf.dim=64", "epochs=1", "search=heads"]
    config = resolve(
        [*quick, "baseline=none", "reader.test_share=0.4", f"data={tmp_path / 'own.csv'}"], default_registry()
    )
    result = run(config, tmp_path / "run", Console(quiet=True))
    found = evaluate_folder(tmp_path / "run", None, default_registry(), "cpu", print)
    assert found.metrics == result.metrics
    assert found.document["data"] == {key: result.document["data"][key] for key in found.document["data"]}
    kept = evaluate_folder(tmp_path / "run", None, default_registry(), "cpu", print, ["data.same_text=keep"])
    assert kept.metrics["de"]["P@3"] < found.metrics["de"]["P@3"], "a query finds itself"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small set of other labels."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "lbl.json").write_text('{"title": "plot"}\n{"title": "music player"}\n{"title": "perl"}\n')
    (folder / "trn.json").write_text('{"title": "plots", "target_ind": [0]}\n')
    queries = [("plot", 0), ("music player", 1), ("perl", 2)]
    lines = [json.dumps({"title": text, "target_ind": [label]}) for text, label in queries]
    (folder / "tst.json").write_text("\n".join(lines))
    return str(folder)


def test_other_labels_are_ranked_by_their_texts(small_run: Path, shop: str) -> None:
    notes: list[str] = []
    found = evaluate_folder(small_run, shop, default_registry(), "cpu", notes.append)
    assert list(found.metrics) == ["de"]
    assert found.metrics["de"]["P@1"] == 100  # the queries are the labels' texts
    assert "only `de`" in notes[0]


def test_classifiers_cannot_rank_other_labels(train: Callable[..., Path], tmp_path: Path, shop: str) -> None:
    folder = train(tmp_path / "run", "head.de=none")
    found = evaluate_folder(folder, None, default_registry(), "cpu", print)
    assert found.metrics == json.loads((folder / "result.json").read_text())["metrics"]
    with pytest.raises(ConfigError, match="no dual encoder"):
        evaluate_folder(folder, shop, default_registry(), "cpu", print)


def test_data_of_another_format_is_read_by_who_knows_it(small_run: Path, shop: str, tmp_path: Path) -> None:
    """The run read label-feature JSON; the labels of a table's cells are cut where `reader.separator` says."""
    (tmp_path / "train.csv").write_text("query,labels\nplots,plot\n")
    (tmp_path / "test.csv").write_text("query,labels\nplot,plot\nmusic player,music player\nperl,perl+plot\n")
    found = evaluate_folder(small_run, str(tmp_path), default_registry(), "cpu", print)
    assert found.document["data"]["labels"] == 3
    options = ["reader=table", "reader.separator=+"]
    cut = evaluate_folder(small_run, str(tmp_path), default_registry(), "cpu", print, options)
    assert cut.document["data"]["labels"] == 3
    assert cut.document["data"]["sha256"] != found.document["data"]["sha256"]
    with pytest.raises(ConfigError, match=r"reader\.separator: unknown key"):
        evaluate_folder(small_run, shop, default_registry(), "cpu", print, ["reader.separator=+"])


def test_what_is_measured_can_be_changed(small_run: Path) -> None:
    found = evaluate_folder(
        small_run, None, default_registry(), "cpu", print, ["evaluate.k=1,10", "evaluate.propensity=0.6,2.6"]
    )
    usual = json.loads((small_run / "result.json").read_text())["metrics"]
    assert found.metrics["de"].keys() >= {"P@1", "P@10"}
    assert found.metrics["de"]["P@1"] == usual["de"]["P@1"]
    assert found.metrics["de"]["PSP@1"] != usual["de"]["PSP@1"]
    assert found.document["propensity"] == {"A": 0.6, "B": 2.6, "source": "evaluate.propensity"}
