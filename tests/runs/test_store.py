"""Run folders: a stored model is the one that was trained."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from xmclab.data import open_dataset, with_reader
from xmclab.errors import StorageError
from xmclab.evaluation.scoring import Evaluator
from xmclab.evaluation.search import Space, rank
from xmclab.host.registry import default_registry
from xmclab.plan.indexes.exact import Exact
from xmclab.runs.run import run
from xmclab.runs.store import load_model, load_search, peak_memory

QUIET = Console(quiet=True)


@pytest.mark.parametrize("search", ["heads", "neighbours"])
def test_a_saved_run_loads_and_ranks_the_same(tmp_path: Path, small_config: Callable[..., Any], search: str) -> None:
    overrides = "optim.decay=0.1", f"search={search}", "head.clf.bias=label", "encoder.towers=separate"
    result = run(small_config(*overrides), tmp_path / "out", QUIET)
    loaded, model = load_model(result.folder, default_registry())
    assert loaded.to_dict() == with_reader(small_config(*overrides)).to_dict()
    data = open_dataset("tiny", "title", default_registry())
    queries, labels = (model.encoder.tokenise(texts) for texts in (data.test.texts, data.label_texts))
    part = loaded.make("search")
    load_search(result.folder, part, torch.device("cpu"))
    assert (result.folder / "search").is_dir() == (search == "neighbours")
    space = Space(model.head_names, len(labels), model.label_vectors(labels, 512), lambda heads: (Exact(), False))
    for name, metrics in result.metrics.items():
        ranking = rank(part, name, model.query_vectors(queries, 512), space, data.test.filter_NL, 100)
        assert Evaluator.of_data(data).metrics(ranking) == pytest.approx(metrics)


def test_a_search_that_learned_nothing_yet_says_how_to_finish_the_run(
    tmp_path: Path, small_config: Callable[..., Any]
) -> None:
    """The model is saved before the last evaluation, what its search learned after it."""
    config = small_config("search=neighbours")
    folder = run(config, tmp_path / "out", QUIET).folder
    shutil.rmtree(folder / "search")
    (folder / "result.json").unlink()
    with pytest.raises(StorageError, match=f"it has no search; finish it with: xmclab run --resume {folder}"):
        load_search(folder, config.make("search"), torch.device("cpu"))


def test_a_run_from_before_bias_towers_and_searches_is_read_as_it_was(
    tmp_path: Path, small_config: Callable[..., Any]
) -> None:
    folder = run(small_config(), tmp_path / "out", QUIET).folder
    expected = load_model(folder, default_registry())[0].to_dict()
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "manifest.json").unlink()
    del tree["search"], tree["validate"], tree["encoder"]["towers"]
    for head in tree["head"].values():
        for option in ("bias", "popularity", "learn_temperature", "normalise_at_search"):
            del head[option]
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    assert load_model(folder, default_registry())[0].to_dict() == expected


def test_a_run_folder_is_never_written_over(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(StorageError, match="not empty"):
        run(small_config(), tmp_path, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_memory_is_told_where_the_system_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_memory(torch.device("cpu"))["peak"] > 2**20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory(torch.device("cpu")) == {}
