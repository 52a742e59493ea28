"""Every example runs and does what it says; those that are distributions do so installed from their wheels."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from xmclab.host.hookspecs import API_VERSION
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run

EXAMPLES = Path(__file__).parents[1] / "examples"
COVERED = {"notebook", "own_training_loop.py", "plugin_minimal", "plugin_sampler", "sentence_transformers_loss.py"}
SMALL = ["data=tiny", "epochs=1", "baseline=none", "encoder.chars_from=0", "sampler.batch_size=512"]
LATER = f"""
import xmclab

xmclab_api = {API_VERSION + 1}

@xmclab.hookimpl
def xmclab_something_new():
    return []
"""
TOO_NEW = f"built for version {API_VERSION + 1} of the plugin interface, but this xmclab has version {API_VERSION}"


def test_every_example_is_covered_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == COVERED


def test_own_training_loop_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_training_loop.py"), run_name="__main__")
    name, percent, _ = capsys.readouterr().out.split()
    assert name == "P@1"
    assert float(percent) > 80


def test_a_sentence_transformer_learns_by_its_own_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "sentence_transformers_loss.py"), run_name="__main__")
    words = capsys.readouterr().out.split()
    before, after = (float(words[place]) for place in (words.index("before,") - 2, words.index("after") - 2))
    assert after > before + 5


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    """The code cells of the notebook, with what they showed when it was executed last."""
    text = (EXAMPLES / "notebook" / "first_run.ipynb").read_text(encoding="utf-8")
    return [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> dict[str, str]:
    """The value of the last line of a cell, by media type."""
    found = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
    return {kind: "".join(lines) for kind, lines in found[-1].items()} if found else {}


def test_the_notebook_was_executed_from_top_to_bottom(cells: list[dict[str, Any]]) -> None:
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert {output["output_type"] for cell in cells for output in cell["outputs"]} == {"execute_result", "stream"}
    text = (EXAMPLES / "notebook" / "first_run.ipynb").read_text(encoding="utf-8")
    assert len(text) < 150_000
    assert not re.search(r"/(tmp|home|root|Users|usr)/|iopub|\\u001b|Warning", text)


def test_the_cells_of_the_notebook_run(
    cells: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On fewer rows, and each shows a table or a text where it showed one."""
    monkeypatch.chdir(tmp_path)
    rows = (EXAMPLES / "notebook" / "packages.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "packages.csv").write_text("\n".join(rows[:150]), encoding="utf-8")
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)  # where dataclasses look for the types of fields
    for cell in cells:
        *body, last = ast.parse("".join(cell["source"])).body
        assert isinstance(last, ast.Expr), "every cell shows something"
        exec(compile(ast.Module(body, []), "cell", "exec"), vars(module))
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), vars(module))
        assert ("text/html" in shown(cell)) == hasattr(value, "_repr_html_")
    html = vars(module)["run"]._repr_html_()
    assert "<table" in html
    assert "<svg" in html


def test_the_minimal_plugin_trains_as_a_file(tmp_path: Path) -> None:
    margin = [f"plugin={EXAMPLES / 'plugin_minimal' / 'xmclab_margin.py'}", "loss.de=margin"]
    config = resolve(["recipe=depsl", *SMALL, *margin, "loss.de.margin.margin=0.5"], default_registry())
    result = run(config, tmp_path / "run", Console(quiet=True))
    assert list(result.metrics) == ["de", "nn", "de+nn"]
    assert '"de/margin/q2l"' in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def installed(clean_environment: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example distributions beside xmclab, and one that was built for a later version of its interface."""
    later = tmp_path_factory.mktemp("later")
    project = (EXAMPLES / "plugin_minimal" / "pyproject.toml").read_text().replace("margin", "later")
    (later / "pyproject.toml").write_text(project)
    (later / "xmclab_later.py").write_text(LATER)
    clean_environment.install(EXAMPLES / "plugin_minimal", EXAMPLES / "plugin_sampler", later)
    return clean_environment


def test_a_loss_of_another_distribution_trains(installed: Any, tmp_path: Path) -> None:
    out, err = installed.run("xmclab", "run", "recipe=depsl", *SMALL, "loss.de=margin", "--json", cwd=tmp_path)
    document = json.loads(out)
    assert document["config"]["loss"]["de"]["expression"] == "margin"
    assert document["metrics"]["de"]["P@1"] > 0
    assert '"de/margin/q2l"' in (tmp_path / document["out"] / "metrics.jsonl").read_text()
    assert (
        f"warning: plugin later: skipped because xmclab-later 0.1 (plugin later) is broken: {TOO_NEW}"
        in err.splitlines()
    )


def test_a_sampler_and_a_recipe_of_another_distribution_train(installed: Any, tmp_path: Path) -> None:
    arguments = [*SMALL[:-1], "epochs=2", "sampler.batch_size=64"]
    out, _ = installed.run("xmclab", "run", "recipe=unidec_slices", *arguments, "--json", cwd=tmp_path)
    document = json.loads(out)
    assert document["config"]["sampler"] == {"name": "slices", "batch_size": 64, "slices": 4}
    records = [json.loads(line) for line in (tmp_path / document["out"] / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records if record["event"] == "refresh"] == [1]


def test_the_parts_of_the_examples_keep_the_laws_of_their_kinds(installed: Any, tmp_path: Path) -> None:
    installed.run("xmclab", "check", "loss:margin", "sampler:slices", cwd=tmp_path)


def test_a_plugin_for_another_version_of_the_interface_is_refused(installed: Any, tmp_path: Path) -> None:
    _, err = installed.run("xmclab", "run", "loss.de=later", "data=tiny", cwd=tmp_path, exit_code=4)
    assert TOO_NEW in err.splitlines()[-1]
