"""The commands, and the boundary where errors become exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

import xmclab
from xmclab import cli
from xmclab.errors import (
    ConfigError,
    DataError,
    DivergedError,
    MemoryLimitError,
    PluginError,
    Problem,
    StorageError,
)
from xmclab.host.hookspecs import KINDS


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Puts a trainer in place that only notes what it is called with, and prints."""
    import xmclab.runs.run

    calls: list[tuple[Any, ...]] = []

    def run(config: Any, out: Path | None, console: Any) -> Any:
        calls.append((config, out))
        print("a part that prints")
        return types.SimpleNamespace(document={"metrics": {"de": {"P@1": 50.0}}})

    monkeypatch.setattr(xmclab.runs.run, "run", run)
    monkeypatch.setattr(xmclab.runs.run, "print_result", lambda console, result: console.print("the table"))
    return calls


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["recipes"],
        *([name, "-h"] for name in ("run", "parts", "predict", "score", "export", "new")),
    ],
)
def test_light_commands_do_not_import_torch(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['xmclab', *{arguments!r}]\n"
        "from xmclab.cli import main\n"
        "try: main()\n"
        "except SystemExit as exit_: assert exit_.code == 0, exit_.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_package_is_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "xmclab", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"xmclab {xmclab.__version__}\n"


def test_run_trains_what_the_overrides_say(call: Any, trainer: list[tuple[Any, ...]], tmp_path: Path) -> None:
    code, out, err = call("run", "recipe=depsl", "epochs=3", "--out", str(tmp_path / "new"))
    assert code == 0
    [(config, folder)] = trainer
    assert (config.recipe, config.settings.epochs) == ("depsl", 3)
    assert folder == tmp_path / "new"
    assert out == "the table\n"
    assert "a part that prints" in err


def test_json_is_one_document_on_stdout(call: Any, trainer: list[tuple[Any, ...]]) -> None:
    code, out, _ = call("run", "--json")
    assert code == 0
    assert json.loads(out) == {"metrics": {"de": {"P@1": 50.0}}}


def test_dry_run_prints_a_recipe(call: Any, trainer: list[tuple[Any, ...]]) -> None:
    code, out, _ = call("run", "recipe=unidec", "pool.beta=9", "--dry-run")
    assert code == 0
    document = yaml.safe_load(out)
    assert document["pool"]["beta"] == 9
    assert document["head"]["clf"]["name"] == "classifier"
    _, as_json, _ = call("run", "recipe=unidec", "pool.beta=9", "--dry-run", "--json")
    assert json.loads(as_json) == document
    assert trainer == []


def test_why_says_who_set_a_value(call: Any, trainer: list[tuple[Any, ...]]) -> None:
    code, out, _ = call("run", "recipe=unidec", "pool.beta=9", "--why")
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["pool.beta"] == ["9", "override"]
    assert rows["reduction.de"][0] == "psl"
    assert rows["reduction.de"][1].startswith("unidec.yaml:")
    assert rows["encoder.hidden"][1:] == ["default", "of", "bag"] or rows["encoder.hidden"][1].startswith("unidec.yaml")
    _, as_json, _ = call("run", "recipe=unidec", "--why", "--json")
    assert {"key": "seed", "value": 0, "source": "default"} in json.loads(as_json)
    assert trainer == []


def test_parts_shows_everything(call: Any) -> None:
    code, out, _ = call("parts", "--json")
    assert code == 0
    document = json.loads(out)
    assert {part["kind"] for part in document["parts"]} == set(KINDS)
    assert document["problems"] == []
    [ds] = [part for part in document["parts"] if (part["kind"], part["name"]) == ("loss", "ds")]
    assert (ds["distribution"], ds["version"], ds["plugin"]) == ("xmclab", xmclab.__version__, "losses")
    assert ds["summary"]
    assert [option["name"] for option in ds["options"]] == ["temperature"]

    code, out, _ = call("parts", "sampler")
    assert code == 0
    assert out.startswith("sampler\n")
    assert "batch_size: int = 1024 >= 1" in out
    assert "decoupled" not in out.lower()


def test_an_unknown_kind_exits_2_with_a_suggestion(call: Any) -> None:
    code, out, err = call("parts", "samplr")
    assert (code, out) == (2, "")
    assert "did you mean 'sampler'" in err


def test_a_run_with_a_plugin_file_can_be_run_again_with_that_file(call: Any, tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "examples" / "plugin_minimal" / "xmclab_margin.py"
    quick = ["data=tiny", "epochs=1", "baseline=none", "sampler.batch_size=512", "--out", tmp_path / "run"]
    losses = ["loss.de=margin", "loss.clf=ds", "reduction=pal_n"]
    code, _, err = call("run", "recipe=unidec", f"plugin={file}", *losses, *quick)
    assert code == 0
    assert "de: scores all labels in one dense matrix (no closed form, so not streamed)" in err
    assert "clf: scores all labels in blocks" in err
    again = f"recipe={tmp_path / 'run' / 'config.yaml'}"
    code, _, err = call("run", again, "--dry-run")
    assert code == 2
    assert err.splitlines()[-1] == (
        f"error: recipe: made with plugin={file} (recipes do not load code; pass plugin=FILE again)"
    )
    assert call("run", again, f"plugin={file}", "--dry-run")[0] == 0


def test_recipes_are_listed_with_their_first_line(call: Any) -> None:
    _, out, _ = call("recipes")
    assert any(line.startswith("depsl") and "DePSL" in line for line in out.splitlines())
    _, as_json, _ = call("recipes", "--json")
    assert {"unidec", "unidec_paper", "unidec_release", "depsl"} <= {row["name"] for row in json.loads(as_json)}


def test_listings_show_what_is_in_a_plugin_file(call: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# All mine.\nbase: unidec\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "from pathlib import Path\nimport xmclab\n"
        "@xmclab.hookimpl\n"
        "def xmclab_parts(): return [xmclab.part('loss', 'of_mine', 'xmclab_losses.ds:DecoupledSoftmax')]\n"
        "@xmclab.hookimpl\n"
        "def xmclab_recipes(): return {'mine': Path(__file__).parent / 'mine.yaml'}\n"
    )
    for arguments in (["loss", f"plugin={file}"], [f"plugin={file}", "loss"], [f"plugin={file}"]):
        code, out, _ = call("parts", *arguments)
        assert code == 0
        assert "of_mine" in out.split()
    code, out, _ = call("recipes", f"plugin={file}")
    assert (code, "All mine." in out) == (0, True)
    assert call("parts", "plugin=nowhere.py") == (2, "", "error: plugin=nowhere.py: no such file\n")


@pytest.mark.parametrize(
    "arguments", [["rnu"], ["run", "--jsno"], ["parts", "loss", "sampler"], ["recipes", "unidec"], ["new", "loss"]]
)
def test_wrong_usage_exits_2(call: Any, arguments: list[str]) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "Usage" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError, 2), (DataError, 3), (PluginError, 4), (DivergedError, 5), (MemoryLimitError, 6), (StorageError, 7)],
)
def test_every_error_has_its_exit_code(call: Any, monkeypatch: pytest.MonkeyPatch, error: Any, code: int) -> None:
    def fail(*_: Any) -> None:
        raise error(Problem("here", "is wrong", "mend it"), Problem("there", "too"))

    monkeypatch.setattr(cli, "_train", fail)
    assert call("run") == (code, "", "error: here: is wrong (mend it)\nerror: there: too\n")


def test_an_interrupt_exits_130_quietly(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_train", interrupt)
    assert call("run") == (130, "", "")


def test_a_bug_exits_1_with_a_traceback_and_a_request(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("unexpected")

    monkeypatch.setattr(cli, "_train", fail)
    code, out, err = call("run")
    assert (code, out) == (1, "")
    assert "ZeroDivisionError: unexpected" in err
    assert "please report it" in err.splitlines()[-1]


def test_a_reader_that_goes_away_is_no_bug() -> None:
    code = "from xmclab.cli import main; import sys; sys.argv = ['xmclab', 'recipes']; main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_listings_have_no_colour_codes_outside_a_terminal(call: Any) -> None:
    for arguments in (["recipes"], ["parts", "loss"], ["run", "--why"]):
        assert "\x1b" not in call(*arguments)[1]
