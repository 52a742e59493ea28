"""Runs on a data set that a preset describes: refused at other sizes, suggested at the same, and the paper's row."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from xmclab.data import open_dataset
from xmclab.errors import DataError
from xmclab.host.registry import Registry, default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.presets import refuse_other_sizes, results, sizes_of, suggestion
from xmclab.runs.run import print_result, run

TINY = open_dataset("tiny", "title", default_registry())
ROWS = "paper: {unidec: {UniDEC: {P@1: 91.5, PSP@5: 7, hours: 3}}, depsl: {DePSL: {P@1: 81.5}}}\n"
QUICK = ["recipe=unidec", "data=tiny", "epochs=1", "sampler.batch_size=512", "encoder.dim=16", "baseline=none"]
QUICK += ["head.de.dim=16", "head.clf.dim=16", "search=heads"]


def plugin(folder: Path, **presets: str) -> Path:
    """A plugin file with these presets."""
    for name, text in presets.items():
        (folder / f"{name}.yaml").write_text(text)
    files = {name: f"{folder / name}.yaml" for name in presets}
    hook = f"import xmclab\n@xmclab.hookimpl\ndef xmclab_presets(): return {files!r}\n"
    (folder / "known.py").write_text(hook)
    return folder / "known.py"


def sized(**others: int) -> str:
    return f"sizes: {json.dumps(sizes_of(TINY) | others)}\n"


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return plugin(tmp_path, Small=sized() + ROWS, Large=sized(labels=9_999_999) + ROWS)


def test_data_of_other_sizes_is_refused(known: Path) -> None:
    def check(preset: str) -> None:
        refuse_other_sizes(resolve([f"plugin={known}", f"preset={preset}"], default_registry()), TINY)

    check("Small")
    ours = f"{len(TINY.train):,} training queries, {len(TINY.test):,} test queries and {TINY.num_labels:,} labels"
    with pytest.raises(DataError) as caught:
        check("Large")
    [problem] = caught.value.problems
    theirs = ours.replace(f"{TINY.num_labels:,} labels", "9,999,999 labels")
    assert problem.where == "preset=Large"
    assert problem.message == f"Large has {theirs}; {TINY.name} has {ours}"
    assert problem.hint == "pass data=FOLDER with Large, or leave out preset="


def test_a_preset_of_unknown_sizes_takes_any_data() -> None:
    config = resolve(["preset=Query2Bid-450M"], default_registry())
    refuse_other_sizes(config, TINY)
    assert results(config, TINY) == {"preset": "Query2Bid-450M"}


def test_a_preset_is_suggested_for_data_of_its_sizes(known: Path, tmp_path: Path) -> None:
    registry = default_registry().with_file(known)
    assert suggestion(resolve([], registry), TINY) == "these are the sizes of Small: preset=Small uses its settings"
    assert suggestion(resolve(["preset=Small"], registry), TINY) == ""
    assert suggestion(resolve([], default_registry()), TINY) == ""
    (tmp_path / "twins").mkdir()
    twins = default_registry().with_file(plugin(tmp_path / "twins", A=sized(), B=sized()))
    both = "these are the sizes of A or B: preset=A or preset=B uses its settings"
    assert suggestion(resolve([], twins), TINY) == both


def paper(registry: Registry, *overrides: str) -> Any:
    return results(resolve(overrides, registry), TINY).get("paper")


def test_the_rows_are_those_of_the_system(known: Path) -> None:
    registry = default_registry().with_file(known)
    row = {"UniDEC (paper)": {"P@1": 91.5, "PSP@5": 7, "hours": 3}}
    assert paper(registry, "recipe=unidec") == row
    assert paper(registry, "recipe=unidec_release", "preset=Small") == row
    assert paper(registry, "recipe=depsl") == {"DePSL (paper)": {"P@1": 81.5}}
    assert paper(registry, "data=tiny") is None
    assert paper(default_registry(), "recipe=unidec") is None


def test_rows_of_two_sets_of_the_same_sizes_name_the_set(tmp_path: Path) -> None:
    registry = default_registry().with_file(plugin(tmp_path, A=sized() + ROWS, B=sized() + ROWS))
    assert list(paper(registry, "recipe=unidec")) == ["UniDEC, A (paper)", "UniDEC, B (paper)"]
    assert list(paper(registry, "recipe=unidec", "preset=B")) == ["UniDEC (paper)"]


def test_the_closing_table_shows_the_row_of_the_paper(tmp_path: Path, known: Path) -> None:
    said, shown = io.StringIO(), io.StringIO()
    config = resolve([*QUICK, f"plugin={known}"], default_registry())
    result = run(config, tmp_path / "run", Console(file=said, width=200))
    assert "these are the sizes of Small: preset=Small uses its settings" in said.getvalue().splitlines()
    assert result.document["paper"] == {"UniDEC (paper)": {"P@1": 91.5, "PSP@5": 7, "hours": 3}}
    assert json.loads((result.folder / "result.json").read_text())["paper"] == result.document["paper"]
    print_result(Console(file=shown, width=200), result)
    lines = [line.split() for line in shown.getvalue().splitlines()]
    place = next(at for at, line in enumerate(lines) if line[:1] == ["de+clf"])
    assert ["UniDEC", "(paper)", "91.50", "7.00"] in lines[place:]
    assert not any("\x1b" in word for line in lines for word in line)


def test_a_run_with_a_preset_names_it_and_one_that_only_validates_has_no_row(tmp_path: Path, known: Path) -> None:
    words = [*QUICK, f"plugin={known}", "preset=Small"]
    said = io.StringIO()
    document = run(resolve(words, default_registry()), tmp_path / "a", Console(file=said)).document
    assert (document["preset"], list(document["paper"])) == ("Small", ["UniDEC (paper)"])
    assert "these are the sizes" not in said.getvalue()
    words += ["evaluate.test=false", "validate.share=0.2"]
    document = run(resolve(words, default_registry()), tmp_path / "b", Console(quiet=True)).document
    assert "paper" not in document


def test_a_resumed_run_remembers_the_system(known: Path) -> None:
    """Its config comes from the run's folder, and only the name of the recipe that it began with is known."""
    config = resolve(["recipe=unidec_paper"], default_registry().with_file(known))
    resumed = replace(config, lineage=("config",))
    assert list(results(resumed, TINY)["paper"]) == ["UniDEC (paper)"]
