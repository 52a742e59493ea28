"""`xmclab new`: what it writes runs as it is, and every command that it prints works."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xmclab import API_VERSION
from xmclab_kit.new import TEMPLATES, USES, _words

PARTS = [kind for kind in USES if kind != "recipe"]
QUICK = ["epochs=1", "baseline=none", "sampler.batch_size=512"]


def steps(out: str) -> list[str]:
    """The commands that were printed."""
    written, _, commands = out.partition("\n\nnext:\n")
    assert all(line.startswith("wrote ") for line in written.splitlines())
    return commands.splitlines()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", USES)
def test_a_single_file_runs_as_it_is(call: Any, here: Path, kind: str) -> None:
    code, out, err = call("new", kind, f"my_{kind}", "--file")
    assert (code, err) == (0, "")
    [file] = [path for path in here.iterdir() if path.is_file()]
    assert file.stem == f"my_{kind}"
    for step in steps(out):
        program, command, *arguments = shlex.split(step)
        assert program == "xmclab"
        code, _, err = call(command, *arguments, *(QUICK if command == "run" else []))
        assert code == 0, err
        assert f"my_{kind}" in step


@pytest.fixture(scope="module")
def distributions(clean_environment: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """A distribution of every kind, written and installed as its commands say: its folder, and the commands left."""
    folder = tmp_path_factory.mktemp("distributions")
    left, installed = {}, []
    for kind in USES:
        out, _ = clean_environment.run("xmclab", "new", kind, f"our_{kind}", cwd=folder)
        install, *left[kind] = steps(out)
        assert install.startswith("pip install -e ")
        installed += ["--editable", folder / shlex.split(install)[-1]]
    clean_environment.install(*installed)
    return {kind: [str(folder), *commands] for kind, commands in left.items()}


def test_the_tests_of_a_distribution_pass(clean_environment: Any, distributions: dict[str, list[str]]) -> None:
    commands = [shlex.split(commands[-1]) for commands in distributions.values()]
    assert {program for program, _ in commands} == {"pytest"}
    folder, *_ = distributions["loss"]
    clean_environment.run("python", "-m", "pytest", *(tests for _, tests in commands), cwd=Path(folder))


def test_an_installed_part_runs_by_its_name(clean_environment: Any, distributions: dict[str, list[str]]) -> None:
    folder, run, check, _ = distributions["loss"]
    clean_environment.run(*shlex.split(run), *QUICK, cwd=Path(folder))
    clean_environment.run(*shlex.split(check), cwd=Path(folder))


def test_what_is_written_is_clean_for_the_tools_of_a_user(call: Any, here: Path) -> None:
    for kind in USES:
        assert call("new", kind, f"a_{kind}_of_mine", "--file")[0] == 0
        assert call("new", kind, f"a_{kind}_of_ours")[0] == 0
    rules = "E,F,W,I,B,UP,SIM,RUF,C4,PIE,PT,RET,NPY,ANN"
    for command in (["check", "--select", rules], ["format", "--check"]):
        for folder in (here, *here.glob("xmclab-*")):
            ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--exclude", "xmclab-*", "."]
            done = subprocess.run(ruff, capture_output=True, text=True, check=False, cwd=folder)
            assert done.returncode == 0, done.stdout + done.stderr


def test_no_word_of_the_templates_is_left(call: Any, here: Path) -> None:
    for kind in USES:
        assert call("new", kind, f"my_{kind}")[0] == 0
        assert call("new", kind, f"my_{kind}", "--file")[0] == 0
    for file in here.rglob("*"):
        text = f"{file}\n{file.read_text()}" if file.is_file() else str(file)
        assert not [word for word in _words("loss", "mine") if word in text], file


def test_every_template_is_used() -> None:
    used = (TEMPLATES.parent / "new.py").read_text()
    files = {file.name for file in TEMPLATES.iterdir() if file.suffix in (".txt", ".yaml")}
    assert all(f'"{file}"' in used for file in files)
    assert {file.stem for file in TEMPLATES.glob("*.py")} == {*PARTS, "__init__"}


def test_templates_are_for_this_version_of_the_interface() -> None:
    for file in ("init.txt", "recipe_init.txt"):
        assert f"\nxmclab_api = {API_VERSION} " in (TEMPLATES / file).read_text()


@pytest.mark.parametrize("options", [[], ["--file"]])
def test_what_exists_is_left_alone(call: Any, here: Path, options: list[str]) -> None:
    assert call("new", "loss", "mine", "--out", "new folder", *options)[0] == 0
    before = {file: file.read_bytes() for file in here.rglob("*.py")}
    code, out, err = call("new", "reduction", "mine", "--out", "new folder", *options)
    assert (code, out) == (2, "")
    assert "already exists (nothing was written" in err
    assert {file: file.read_bytes() for file in here.rglob("*.py")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["losss", "mine"], "error: unknown kind of part 'losss' (did you mean 'loss'?)"),
        (["transform", "mine"], "error: no template for a transform"),
        (
            ["loss", "my-loss"],
            "error: my-loss: not a valid name (use letters, digits and single underscores, as in my_loss)",
        ),
        (["loss", "2nd"], "error: 2nd: not a valid name (use letters, digits and single underscores, as in my_loss)"),
        (
            ["loss", "../mine"],
            "error: ../mine: not a valid name (use letters, digits and single underscores, as in my_loss)",
        ),
        (
            ["loss", "mine_"],
            "error: mine_: not a valid name (use letters, digits and single underscores, as in my_loss)",
        ),
        (["loss", "_"], "error: _: not a valid name (use letters, digits and single underscores, as in my_loss)"),
        (["loss", "lambda"], "error: lambda: is a reserved word (choose another name)"),
        (["head", "none"], "error: none: is a reserved word (choose another name)"),
        (["loss", "ds"], "error: ds: is the name of the loss of xmclab 0.1.0 (plugin losses) (choose another name)"),
        (["recipe", "unidec"], "error: unidec: is the name of the recipe of xmclab 0.1.0 (plugin unidec)"),
        (["loss", "core"], "error: core: is the name of the plugin of xmclab"),
        (["loss", "json", "--file"], "error: json: a Python module 'json' already exists (choose another name)"),
        (["loss", "tensor"], "error: tensor: its class would be called Tensor, like one that it uses"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(call: Any, here: Path, arguments: list[str], message: str) -> None:
    code, out, err = call("new", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert list(here.iterdir()) == []


def test_a_folder_that_cannot_be_written_exits_7(call: Any, here: Path) -> None:
    (here / "file").touch()
    code, _, err = call("new", "loss", "mine", "--out", "file")
    assert code == 7
    assert "cannot be written" in err
