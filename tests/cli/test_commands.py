"""Commands of plugins on the command line: listed, helped, run; a broken one leaves the others alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from xmclab import cli
from xmclab.host.hookspecs import COMMANDS
from xmclab.host.registry import load_registry

GREET = """
import typer
import xmclab
from xmclab.errors import DataError, Problem

family = typer.Typer(help="A family.")

@family.command()
def one(): print("the first")

@family.command()
def two(): print("the second")

def greet(name: str = "you", times: int = typer.Option(1, min=1, help="How often.")):
    "Say hello."
    if name == "nobody":
        raise DataError(Problem("greet", "there is nobody"))
    print(f"hello {name} " * times)

def odd(thing: int | str): ...

@xmclab.hookimpl
def xmclab_commands():
    return [
        xmclab.command("greet", greet),
        xmclab.command("family", family, help="A family."),
        xmclab.command("odd", odd, help="Cannot be read."),
        xmclab.command("gone", "no_such_module_anywhere:gone", help="Cannot be imported."),
    ]
"""
Install = Callable[..., str]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, call: Call) -> Call:
    """The command line in this process, which finds the plugins that a test installs."""
    for place in ("xmclab.cli.commands", "xmclab.host.registry"):
        monkeypatch.setattr(f"{place}.default_registry", lambda: load_registry(os.environ))
    return call


def listed(help: str) -> dict[str, str]:
    """Commands and their lines, of `xmclab --help`."""
    groups = help.partition("\nTrain:\n")[2].partition("\n\n  plugin=")[0]
    text = re.sub(r"\n {4,}", " ", groups)  # lines that go on
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    return {name: text.strip() for name, _, text in (line.strip().partition(" ") for line in lines)}


def test_the_built_in_commands_are_those_that_no_plugin_may_take() -> None:
    groups = [group.name for group in cli.app.registered_groups]
    names = [command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback]
    assert sorted([*groups, *names]) == sorted(COMMANDS)  # type: ignore[type-var]


def test_commands_of_plugins_are_listed_and_run(install: Install, fresh: Call) -> None:
    install(GREET)
    code, out, err = fresh("--help")
    assert (code, err) == (0, "")
    assert {"greet": "Say hello.", "family": "A family.", "gone": "Cannot be imported."}.items() <= listed(out).items()
    assert {"run", "parts", "bench", "report", "check", "new"} <= listed(out).keys()
    assert "\nOthers:\n" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.replace("[ARGS]...", "")
    assert all(text.endswith(".") for text in listed(out).values())
    code, out, _ = fresh("greet", "-h")
    assert code == 0
    assert "Usage: xmclab greet [OPTIONS]" in out
    assert "How often." in out
    assert fresh("greet", "--name", "all", "--times", 2) == (0, "hello all hello all \n", "")
    assert fresh("family", "two") == (0, "the second\n", "")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["train"], "Did you mean 'run'?"),
        (["compare"], "Did you mean 'bench'?"),
        (["predict", "runs/a", "text", "--top", "3"], "No such option: --top (Possible options: -k)"),
    ],
)
def test_words_of_other_programs_are_understood(call: Call, words: list[str], meant: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert meant in err


def test_errors_of_commands_have_their_exit_codes(install: Install, fresh: Call) -> None:
    install(GREET)
    assert fresh("greet", "--name", "nobody") == (3, "", "error: greet: there is nobody\n")
    code, out, err = fresh("greet", "--times", 0)
    assert (code, out) == (2, "")
    assert "Usage: xmclab greet" in err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", "No module named 'no_such_module_anywhere'"),
        ("odd", "AssertionError: Typer"),
    ],
)
def test_a_command_that_cannot_be_made_is_an_error_of_its_plugin(
    install: Install, fresh: Call, name: str, reason: str
) -> None:
    install(GREET)
    code, out, err = fresh(name)
    assert (code, out) == (4, "")
    assert err.startswith(f"error: other-dist 2.5 (plugin other): command {name!r}: ")
    assert reason in err
    assert fresh("greet")[0] == 0


def test_a_broken_plugin_leaves_the_others_working(install: Install, fresh: Call) -> None:
    install("raise RuntimeError('out of order')", "broken-dist", "0.9", "broken")
    install(GREET)
    code, out, err = fresh("--help")
    assert code == 0
    assert {"run", "bench", "greet"} <= listed(out).keys()
    assert err == (
        "warning: plugin broken: skipped because broken-dist 0.9 (plugin broken) is broken: "
        "import: RuntimeError: out of order\n"
    )
    assert fresh("greet") == (0, "hello you \n", "")
    code, out, err = fresh("theirs")
    assert (code, out) == (4, "")
    assert err.startswith("error: unknown command 'theirs' (")
    assert "broken-dist 0.9 (plugin broken): import: RuntimeError: out of order" in err


def test_a_name_that_two_plugins_claim_is_nobodys(install: Install, fresh: Call) -> None:
    install(GREET.replace('"greet", greet', '"bench", greet'))
    code, out, err = fresh("bench", "--list")
    assert (code, out) == (4, "")
    assert "command 'bench' is supplied by both xmclab " in err
    assert "(plugin bench) and other-dist 2.5 (plugin other) (use 'other_dist.bench' or 'xmclab.bench', " in err
    assert fresh("other_dist.bench") == (0, "hello you \n", "")
    code, out, _ = fresh("xmclab.bench", "--list")
    assert (code, "reductions" in out) == (0, True)
    code, out, err = fresh("--help")
    assert code == 0
    assert {"other_dist.bench", "xmclab.bench"} <= listed(out).keys()
    assert "bench" not in listed(out)
    assert err.startswith("warning: command bench: command 'bench' is supplied by both ")


def test_a_built_in_command_stays_what_it_is(install: Install, fresh: Call) -> None:
    install(GREET.replace('"greet", greet', '"recipes", greet'))
    code, out, err = fresh("--help")
    assert (code, listed(out)["recipes"]) == (0, "List the recipes, for recipe=NAME.")
    assert "command 'recipes' is built in: choose another name" in err
    assert "unidec" in fresh("recipes")[1]


def test_plugins_can_be_limited_and_strictness_is_kept(
    install: Install, fresh: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("raise RuntimeError('out of order')", "broken-dist", "0.9", "broken")
    monkeypatch.setenv("XMCLAB_PLUGINS", "bench")
    code, out, err = fresh("--help")
    assert (code, err) == (0, "")
    assert {"run", "bench", "report"} == listed(out).keys() & {"run", "bench", "report", "check", "new"}
    code, _, err = fresh("check", "loss:ds")
    assert code == 2
    assert "No such command 'check'" in err
    monkeypatch.delenv("XMCLAB_PLUGINS")
    monkeypatch.setenv("XMCLAB_STRICT", "1")
    for arguments in (["--help"], ["bench", "--list"]):
        code, out, err = fresh(*arguments)
        assert (code, out) == (4, "")
        assert "RuntimeError: out of order" in err
    assert fresh("run", "--help")[0] == 0  # which needs no plugin


@pytest.mark.parametrize("name", ["bench", "report", "check", "new"])
def test_help_of_a_plugins_command_needs_no_torch(name: str) -> None:
    code = (
        f"import sys; sys.argv = ['xmclab', {name!r}, '--help']\n"
        "from xmclab.cli import main\n"
        "try: main()\n"
        "except SystemExit as exit_: assert exit_.code == 0, exit_.code\n"
        "assert not {'torch', 'transformers', 'hypothesis', 'pytest'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Usage: xmclab {name} [OPTIONS]" in done.stdout
