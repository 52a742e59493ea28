"""The command line: usage, exit codes, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    assert err.splitlines()[0] == (
        f"error: recipe: made with plugin={file} (recipes do not load code; pass plugin=FILE again)"
    )
    assert call("run", again, f"plugin={file}", "--dry-run")[0] == 0


def test_recipes_are_listed_with_their_first_line(call: Any) -> None:
    _, out, _ = call("recipes")
    assert any(line.startswith("depsl") and "DePSL" in line for line in out.splitlines())
    _, as_json, _ = call("recipes", "--json")
    assert {"unidec", "unidec_paper", "unidec_release", "depsl"} <= {row["name"] for row in json.loads(as_json)}


def test_recipes_are_listed_by_group(call: Any, tmp_path: Path) -> None:
    hook = "from pathlib import Path\nimport xmclab\n@xmclab.hookimpl\ndef xmclab_recipes(): return "
    (tmp_path / "mine.py").write_text(f"{hook}{{'mine': Path({str(tmp_path / 'mine.yaml')!r})}}\n")
    (tmp_path / "mine.yaml").write_text("# All mine.\nbase: unidec\n")
    _, out, _ = call("recipes", f"plugin={tmp_path / 'mine.py'}")
    titles = [line.strip() for line in out.splitlines() if line.rstrip().endswith(":")]
    assert titles == ["the paper's own:", "rivals:", "small forms:", "variants:", "others:"]
    group, title = dict[str, str](), ""
    for line in out.splitlines():
        title = line.strip() if line.rstrip().endswith(":") else title
        group[line.split()[0]] = title
    assert group["unidec_paper"] == "the paper's own:"
    assert group["unidec_transformer"] == "variants:"
    assert group["depsl"] == "small forms:"
    assert group["mine"] == "others:"
    rows = {row["name"]: row for row in json.loads(call("recipes", "--json")[1])}
    assert rows["depsl"]["group"] == "small forms"
    (tmp_path / "mine.yaml").write_text("# All mine.\n# group: ours\n")
    assert "\nours:" in call("recipes", f"plugin={tmp_path / 'mine.py'}")[1]


def test_presets_are_listed_with_their_first_line(call: Any) -> None:
    code, out, _ = call("presets")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert "by title: 1,305,265 labels." in lines["LF-AmazonTitles-1.3M"]
    rows = json.loads(call("presets", "--json")[1])
    assert [row["name"] for row in rows] == list(lines)


def test_an_unknown_preset_exits_2_with_a_suggestion(call: Any) -> None:
    code, out, err = call("run", "preset=LF-AmazonTitle-131K", "--why")
    assert (code, out) == (2, "")
    assert err == "error: preset: unknown preset 'LF-AmazonTitle-131K' (did you mean 'LF-AmazonTitles-131K'?)\n"


def test_a_preset_on_data_of_other_size_exits_3(call: Any) -> None:
    theirs = "LF-AmazonTitles-131K has 294,805 training queries, 134,835 test queries and 131,073 labels"
    hint = "pass data=FOLDER with LF-AmazonTitles-131K, or leave out preset="
    for command in ("run", "plan"):
        code, out, err = call(command, "preset=LF-AmazonTitles-131K", "data=tiny")
        assert (code, out) == (3, "")
        [line] = [line for line in err.splitlines() if line.startswith("error: ")]
        assert line.startswith(f"error: preset=LF-AmazonTitles-131K: {theirs}; tiny has ")
        assert line.endswith(f" labels ({hint})")


@pytest.mark.parametrize(
    "arguments",
    [
        *(["rnu"], ["run", "--jsno"], ["parts", "loss", "sampler"], ["recipes", "unidec"], ["presets", "debian"]),
        ["new", "loss"],
    ],
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
    assert call("run", "recipe=unidec") == (code, "", "error: here: is wrong (mend it)\nerror: there: too\n")


def test_an_interrupt_exits_130_with_one_line(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_train", interrupt)
    assert call("run", "recipe=unidec") == (130, "", "interrupted\n")


def test_a_bug_exits_1_with_a_traceback_and_a_request(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("unexpected")

    monkeypatch.setattr(cli, "_train", fail)
    code, out, err = call("run", "recipe=unidec")
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
