"""The page of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planted import planted

from xmclab.host.registry import default_registry
from xmclab_bench import runner
from xmclab_bench.study import Runner
from xmclab_bench.tune import Tuned, tune
from xmclab_bench.tune_page import importances, tune_page


def study(folder: Path, monkeypatch: pytest.MonkeyPatch, trials: int) -> Tuned:
    def quality(config: dict[str, Any]) -> float:
        if config["encoder"]["lr"] > 0.02:
            raise RuntimeError("<not> finite")
        return 10 + 1000 * config["encoder"]["lr"]

    monkeypatch.setattr(runner, "processes", planted(quality))
    (folder / "space.yaml").write_text("encoder.lr: log(1e-3, 3e-2)\nhead.de.temperature: log(0.05, 0.2)\n")
    work = Runner(default_registry(), folder / "cells", 1, lambda _: None)
    overrides = ["recipe=unidec", "data=tiny", "epochs=2"]
    return tune(overrides, default_registry(), work, folder, trials, "P@1", folder / "space.yaml")


def test_the_page_shows_every_trial_and_what_mattered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(tmp_path, monkeypatch, 14)
    text = tune_page(found, "runs/best")
    assert f"Best of 14 trials: P@1 {found.best.value:.2f}" in text
    assert text.count("<svg") == 3
    assert found.command in text
    assert "runs/best" in text
    assert "&lt;not&gt; finite" in text
    assert "<not>" not in text
    assert text.count("<tr>") == 15
    weights = importances(found)
    assert weights["encoder.lr"] > weights["head.de.temperature"]
    assert sum(weights.values()) == pytest.approx(1)


def test_few_trials_have_a_page_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(tmp_path, monkeypatch, 1)
    assert importances(found) == {}
    assert "Too few complete trials" in tune_page(found, "")
