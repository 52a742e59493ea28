"""Measuring and comparing from Python: the numbers of `xmclab eval` and `xmclab report`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmclab as xl
from xmclab.errors import ConfigError, PluginError
from xmclab_bench.report import compare_folders

Rows = list[tuple[str, list[str]]]


def test_an_evaluation_is_that_of_the_command(small_run: Path, call: Callable[..., Any]) -> None:
    code, out, _ = call("eval", small_run, "evaluate.k=1,3", "--json")
    found = xl.evaluate(xl.load(small_run), **{"evaluate.k": [1, 3]})
    assert code == 0
    assert found.document == json.loads(out)
    assert xl.evaluate(small_run, "tiny", "evaluate.k=1,3").metrics == found.metrics
    assert f"{found.metrics['de']['P@1']:.2f}" in str(found)
    assert f"{found.metrics['de']['P@1']:.2f}" in found._repr_html_()


def test_rows_can_be_evaluated_on(small_run: Path) -> None:
    data = xl.read("tiny")
    labels = list(zip(data.dataset.label_names, data.dataset.label_texts, strict=True))
    some = [
        (text, [data.dataset.label_names[label] for label in data.dataset.test.targets_NL[[row]].indices])
        for row, text in enumerate(data.dataset.test.texts[:50])
    ]
    found = xl.evaluate(small_run, xl.read(some, test=some, labels=labels), quiet=True)
    assert set(found.metrics) == {"de", "clf", "de+clf"}, "the labels are those of the model"
    assert found.document["data"]["test"] == 50


def test_a_comparison_is_that_of_the_bench(
    train: Callable[..., Path], small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = train(tmp_path / "other", "head.de.dim=16", "head.clf.dim=12", "loss.clf=bce")
    found = xl.compare([xl.load(small_run), other], ["P@1"])
    assert found.document == compare_folders([small_run, other], ["P@1"])
    assert {test["metric"] for test in found.tests} == {"P@1"}
    assert all(0 < test["p"] <= 1 and test["low"] <= test["value"] <= test["high"] for test in found.tests)
    assert found.verdict[0] in str(found)
    assert found.verdict[0].split(",")[0] in found._repr_html_()
    assert "<b>" not in found._repr_html_(), "with one seed each"
    assert repr(found) == f"Comparison(2 runs: {' '.join(found.verdict)})"
    assert xl.compare([small_run, other], "P@1").document == found.document
    with pytest.raises(ConfigError, match=r"^metrics: no run has 'P@2'"):
        xl.compare(small_run, "P@2")
    monkeypatch.setenv("COLUMNS", "64")
    table = str(xl.compare([small_run, other])).partition("2 runs\n")[2].partition("\ntiny:")[0]
    assert max(map(len, table.splitlines())) <= 64
    assert len(re.findall(r"^ ?row +search", table, re.MULTILINE)) > 1, "several tables, no broken row"
    assert len(re.findall(r"^ ?other +de ", table, re.MULTILINE)) == len(re.findall(r"^ ?row ", table, re.MULTILINE))


def test_runs_on_the_same_rows_share_a_row(rows: Rows, tmp_path: Path) -> None:
    """Though each has a copy of its own."""
    data = xl.read(rows, test=rows[:5])
    quick = {"epochs": 1, "encoder.dim": 8, "head.de.dim": 8, "head.clf.dim": 8, "baseline": None, "quiet": True}
    runs = [xl.train("unidec", data, out=tmp_path / str(seed), seed=seed, **quick) for seed in (0, 1)]
    assert [group["seeds"] for group in xl.compare(runs).document["groups"]] == [[0, 1]]


def test_without_the_bench_a_comparison_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xmclab_bench.report", None)
    with pytest.raises(PluginError, match="xmclab_bench: cannot be imported"):
        xl.compare([])
