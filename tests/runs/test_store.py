"""Run folders: a stored model is the one that was trained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from xmclab.data import open_dataset, with_reader
from xmclab.errors import StorageError
from xmclab.host.registry import default_registry
from xmclab.runs.run import run
from xmclab.runs.store import load_model, peak_memory

QUIET = Console(quiet=True)


def test_a_saved_run_loads_and_ranks_the_same(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    result = run(small_config("optim.decay=0.1"), tmp_path / "out", QUIET)
    loaded, model = load_model(result.folder, default_registry())
    assert loaded.to_dict() == with_reader(small_config("optim.decay=0.1")).to_dict()
    data = open_dataset("tiny", "title", default_registry())
    from xmclab.data.propensity import inverse_propensity, propensity_parameters
    from xmclab.evaluation.metrics import evaluate
    from xmclab.evaluation.search import rank_all

    tokenise = model.encoder.tokenise
    rankings = rank_all(
        model,
        lambda: loaded.make("index"),
        tokenise(data.test.texts),
        tokenise(data.label_texts),
        data.test.filter_NL,
        100,
        512,
    )
    weights = inverse_propensity(data.train.targets_NL, *propensity_parameters(data.name))
    found = {name: evaluate(ranking, data.test.targets_NL, weights) for name, ranking in rankings.items()}
    for name, metrics in result.metrics.items():
        assert found[name] == pytest.approx(metrics)


def test_a_run_folder_is_never_written_over(tmp_path: Path, small_config: Callable[..., Any]) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(StorageError, match="not empty"):
        run(small_config(), tmp_path, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_memory_is_told_where_the_system_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_memory(torch.device("cpu"))["peak"] > 2**20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory(torch.device("cpu")) == {}
