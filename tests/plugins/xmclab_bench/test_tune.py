"""Tuning a config and the rows of a bench. Trials are planted."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from planted import Quality, planted
from rich.console import Console

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab_bench import runner
from xmclab_bench.bench import Result, Tuning, run_bench
from xmclab_bench.space import typed
from xmclab_bench.spec import load_spec
from xmclab_bench.study import JOURNAL, Runner, ended
from xmclab_bench.tables import chosen, footnote
from xmclab_bench.tune import RECIPE, Tuned, _write_recipe, tune

SPEC = """\
# Two reductions.
base: [recipe=unidec, data=tiny, epochs=2, baseline=none]
rows:
  POL: [reduction=pol]
  PSL: [reduction=psl]
space:
  encoder.lr: log(1e-3, 1e-1)
grid: {seed: [0, 1, 2]}
searches: [de+clf]
metrics: [P@1]
"""
RECIPE_RATE = 0.006  # of unidec


def peaks(**peak: tuple[float, float]) -> Quality:
    """By reduction, its best quality and the learning rate that it needs; 8 less for every factor of e off."""

    def quality(config: dict[str, Any]) -> float:
        best, rate = peak[config["reduction"]["de"]["name"]]
        return max(best - 8 * abs(math.log(config["encoder"]["lr"] / rate)), 1.0)

    return quality


def bench(folder: Path, monkeypatch: pytest.MonkeyPatch, quality: Quality, trials: int, spec: str = SPEC) -> Result:
    folder.mkdir(exist_ok=True)
    (folder / "two.yaml").write_text(spec)
    monkeypatch.setattr(runner, "processes", planted(quality))
    tuning = Tuning(trials, folder / JOURNAL) if trials else None
    declared = load_spec(str(folder / "two.yaml"), [])
    return run_bench(declared, default_registry(), folder / "cells", Console(quiet=True), tuning=tuning)


def verdict(result: Result) -> str:
    return " ".join(result.document["verdict"]["sentences"])


def test_a_row_that_is_only_better_tuned_is_not_called_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quality = peaks(psl=(45, RECIPE_RATE), pol=(45, 0.03))
    shipped = verdict(bench(tmp_path / "shipped", monkeypatch, quality, 0))
    assert "PSL is better than POL" in shipped
    tuned = verdict(bench(tmp_path / "tuned", monkeypatch, quality, 12))
    assert "better" not in tuned
    assert "cannot be told apart" in tuned or "may only have been luckier" in tuned


def test_a_better_row_is_called_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quality = peaks(psl=(80, RECIPE_RATE), pol=(40, RECIPE_RATE))
    assert "PSL is better than POL" in verdict(bench(tmp_path, monkeypatch, quality, 8))


def test_a_row_that_is_ahead_with_every_setting_is_called_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bands of both overlap, as settings matter more than the row; but the settings were the same."""
    quality = peaks(psl=(60, RECIPE_RATE), pol=(50, RECIPE_RATE))
    document = bench(tmp_path, monkeypatch, quality, 8).document
    low, high = (row["curve"][0] for row in document["tuning"]["rows"])
    assert (high["low"] or 0) < (low["high"] or 100)
    assert "PSL is better than POL" in " ".join(document["verdict"]["sentences"])


def test_a_luckier_row_is_not_called_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its best trial is far better than the other's, but most of its trials are alike."""
    quality = peaks(psl=(60, 0.006), pol=(50, 0.008))
    found = verdict(bench(tmp_path, monkeypatch, quality, 4))
    assert "PSL is better" not in found
    assert "PSL" in found
    assert "not clearly in 4 trials" in found


def test_seeds_are_trained_with_what_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = bench(tmp_path, monkeypatch, peaks(psl=(45, 0.01), pol=(45, 0.03)), 6).document
    assert [row["name"] for row in document["tuning"]["rows"]] == ["POL", "PSL"]
    for row, rate in zip(document["tuning"]["rows"], (0.03, 0.01), strict=True):
        assert len(row["scores"]) == len(row["curve"]) == 6
        assert row["space"] == {"encoder.lr": "log(0.001, 0.1)"}
        best = 45 - 8 * abs(math.log(float(row["chosen"]["encoder.lr"]) / rate))
        assert max(row["scores"]) == pytest.approx(best)
        (shown,) = [each for each in document["rows"] if each["name"] == row["name"]]
        assert shown["metrics"]["P@1"]["values"] == pytest.approx([best] * 3)
        (group,) = [each for each in document["groups"] if each["name"] == row["name"]]
        assert group["seeds"] == [0, 1, 2]
    assert "the best of 6 random trials by P@1 on validation queries" in footnote(document)
    assert chosen(document)[0].startswith("chosen for POL: encoder.lr=")


def test_trials_look_at_validation_only_and_have_equal_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def quality(config: dict[str, Any]) -> float:
        seen.append(config)
        return 40.0

    bench(tmp_path, monkeypatch, quality, 3)
    trials = [config for config in seen if not config["evaluate"]["test"]]
    seeds = [config for config in seen if config["evaluate"]["test"]]
    assert len(trials) == len(seeds) == 6
    assert {config["validate"]["share"] for config in trials} == {0.2}
    assert {config["validate"]["every"] for config in trials} == {2}  # once, after the last epoch
    assert {config["validate"]["share"] for config in seeds} == {None}  # as the data suggests
    assert {config["validate"]["search"] for config in trials} == {"de+clf"}  # of the verdict, not the last one
    assert {config["epochs"] for config in seen} == {2}


def test_settings_of_the_spec_are_used_until_rows_are_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPEC + "tuned:\n  POL: [encoder.lr=0.03]\n"
    quality = peaks(psl=(45, RECIPE_RATE), pol=(45, 0.03))
    document = bench(tmp_path / "a", monkeypatch, quality, 0, spec).document
    assert "cannot be told apart" in " ".join(document["verdict"]["sentences"])
    assert document["chosen"] == {"POL": ["encoder.lr=0.03"]}
    assert "Settings chosen earlier on validation queries." in footnote(document)
    again = bench(tmp_path / "b", monkeypatch, quality, 3, spec).document
    assert [set(row["chosen"]) for row in again["tuning"]["rows"]] == [{"encoder.lr"}] * 2


def test_what_is_typed_replaces_what_was_chosen(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(SPEC + "tuned:\n  POL: [encoder.lr=0.03, pool.eta=2]\n")

    def of(*typed: str) -> tuple[str, ...]:
        return load_spec(str(tmp_path / "two.yaml"), typed).tuned["POL"]

    assert of("data=debian") == ("encoder.lr=0.03", "pool.eta=2")
    assert of("encoder.lr=0.1") == of("encoder=hf") == ("pool.eta=2",)
    assert of("recipe=depsl") == ()


def test_settings_of_a_row_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(SPEC + "tuned:\n  POLL: [encoder.lr=0.03]\n")
    with pytest.raises(ConfigError, match="POL"):
        load_spec(str(tmp_path / "two.yaml"), [])


def test_an_option_that_no_row_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no row has such an option"):
        bench(tmp_path, monkeypatch, lambda _: 40.0, 2, SPEC.replace("encoder.lr: log", "encoder.lrr: log"))


# xmclab tune


def tuned(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    quality: Quality,
    overrides: Sequence[str] = ("recipe=unidec", "data=tiny", "epochs=4"),
    trials: int = 6,
    space: str = "",
) -> Tuned:
    folder.mkdir(exist_ok=True)
    file = folder / "space.yaml" if space else None
    if file:
        file.write_text(space)
    monkeypatch.setattr(runner, "processes", planted(quality, epochs=True))
    work = Runner(default_registry(), folder / "cells", 1, lambda _: None)
    return tune(overrides, default_registry(), work, folder, trials, "P@1", file)


def test_the_first_trial_has_the_settings_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quality(config: dict[str, Any]) -> float:
        return 50.0 if config["encoder"]["lr"] == RECIPE_RATE else 40.0

    found = tuned(tmp_path, monkeypatch, quality)
    assert found.best.number == 0
    recipe = {key: typed(value) for key, value, _ in resolve(["recipe=unidec"], default_registry()).explain()}
    assert {key: value for key, value in found.chosen.items() if key != "epochs"}.items() <= recipe.items()


def test_the_best_is_written_as_a_recipe_that_trains_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed_ = ("recipe=unidec", "data=tiny", "epochs=4", "pool.eta=3", "validate.share=0.3")
    found = tuned(tmp_path, monkeypatch, peaks(psl=(45, 0.02)), typed_)
    config = resolve([f"recipe={found.recipe}"], default_registry()).to_dict()
    assert typed(config["encoder"]["lr"]) == found.chosen["encoder.lr"]
    assert config["pool"]["eta"] == 3
    assert config["validate"]["share"] is None
    assert found.command.startswith("xmclab run recipe=unidec data=tiny pool.eta=3 ")
    assert "validate" not in found.command
    assert resolve(found.arguments[1:], default_registry()).to_dict()["encoder"] == config["encoder"]


def test_a_recipe_that_needs_a_plugin_says_so_in_its_first_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is what a run without the plugin quotes."""
    plugin = tmp_path / "mine.py"
    supplies = "[xmclab.part('loss', 'mine', 'xmclab_losses.ds:DecoupledSoftmax')]"
    plugin.write_text(f"import xmclab\n\n@xmclab.hookimpl\ndef xmclab_parts():\n    return {supplies}\n")
    found = tuned(tmp_path / "out", monkeypatch, lambda _: 40.0, ("recipe=unidec", "data=tiny", f"plugin={plugin}"), 1)
    assert found.recipe.read_text().splitlines()[0] == f"# made with plugin={plugin}"


def test_the_number_of_epochs_is_that_of_the_best_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(tmp_path, monkeypatch, peaks(psl=(45, 0.02)))
    assert found.chosen["epochs"] == "4"
    assert found.command.count("epochs=") == 1


def test_a_space_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(tmp_path, monkeypatch, lambda _: 40.0, space="pool.beta: [1, 3]\n")
    assert set(found.chosen) == {"pool.beta", "epochs"}


def test_a_wrong_metric_is_refused_before_anything_runs(tmp_path: Path) -> None:
    work = Runner(default_registry(), tmp_path / "cells", 1, lambda _: None)
    with pytest.raises(ConfigError, match=r"--metric P@7.*did you mean 'P@"):
        tune(["recipe=unidec", "data=tiny"], default_registry(), work, tmp_path / "out", 3, "P@7")
    assert not (tmp_path / "out").exists()


def test_what_was_typed_cannot_be_tried_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed_ = ("recipe=unidec", "data=tiny", "pool.beta=3")
    with pytest.raises(ConfigError, match="on the command line and tried by the space"):
        tuned(tmp_path, monkeypatch, lambda _: 40.0, typed_, space="pool.beta: [1, 3]\n")


def test_nothing_to_try_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = [f"{axis.key}=0.1" for axis in tuned(tmp_path / "a", monkeypatch, lambda _: 40.0, trials=1).question.axes]
    fixed = [text.replace("bias=0.1", "bias=none") for text in fixed]
    with pytest.raises(ConfigError, match="is left to try"):
        tuned(tmp_path / "b", monkeypatch, lambda _: 40.0, ("recipe=unidec", "data=tiny", *fixed))


def test_trials_that_all_fail_are_an_error_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quality(config: dict[str, Any]) -> float:
        raise RuntimeError("the loss is not finite")

    with pytest.raises(ConfigError, match=r"none of 6 trials was complete.*not finite"):
        tuned(tmp_path, monkeypatch, quality)


def test_a_study_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(tmp_path, monkeypatch, peaks(psl=(45, 0.02)), trials=3)
    found = tuned(tmp_path, monkeypatch, peaks(psl=(45, 0.02)), trials=5)
    assert len(ended(found.study)) == 5
    assert [trial.number for trial in ended(found.study)] == [0, 1, 2, 3, 4]


def test_the_tuned_recipe_of_a_file_brings_what_it_builds_on(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "parts").mkdir(parents=True)
    (mine / "parts" / "small.yaml").write_text("base: unidec\nepochs: 3\n")
    (mine / "recipe.yaml").write_text("base: parts/small.yaml\npool.beta: 5\n")
    overrides = [f"recipe={mine / 'recipe.yaml'}", "data=tiny", "pool.eta=2"]
    config = resolve(overrides, default_registry())
    written = _write_recipe(tmp_path / "tuned" / RECIPE, config, overrides, {"encoder.lr": "0.01"})
    shutil.rmtree(mine)
    settings = resolve([f"recipe={written}"], default_registry()).settings
    assert (settings.epochs, settings.pool.beta, settings.pool.eta) == (3, 5, 2)


def test_only_the_last_stage_is_chosen_by_the_search_of_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has no classifier, and so no such search."""
    staged = tmp_path / "staged.yaml"
    staged.write_text(
        "base: unidec\nsearch: heads\nstages:\n"
        "  phi: {head.clf: none}\n  psi: {start: phi, freeze: [encoder, head.de]}\n"
    )
    searches = []

    def quality(config: dict[str, Any]) -> float:
        if config["validate"]["share"]:
            searches.append((config["stages"]["phi"]["validate"]["search"], config["validate"]["search"]))
        return 50.0

    spec = SPEC.replace("recipe=unidec", f"recipe={staged}").replace("reduction=p", "reduction.de=p")
    bench(tmp_path / "bench", monkeypatch, quality, 1, spec)
    assert set(searches) == {("", "de+clf")}
