"""The registry: what plugins supply is found by name, described, and never shadowed by another plugin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmclab.errors import ConfigError, DataError, PluginError
from xmclab.host.load import Origin
from xmclab.host.registry import Registry

Install = Callable[..., str]


def test_built_in_parts_come_without_problems(load: Callable[..., Any]) -> None:
    registry = load()
    assert registry.problems == []
    assert {"ova", "ova_n", "pol", "pal", "pal_n", "psl"} <= set(registry.names("reduction"))
    assert {"ds", "supcon", "bce"} <= set(registry.names("loss"))
    assert {"unidec", "depsl"} <= set(registry.names("recipe"))
    assert registry.dataset("tiny").is_dir()
    assert [part.name for part in registry.describe() if part.problem] == []


def test_nothing_heavy_is_imported_until_a_part_is_used() -> None:
    code = (
        "import sys; from xmclab.host.registry import default_registry as r; r().names('loss'); r().recipe('unidec');"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_xmclab_parts_supplies_parts_by_name(
    install: Install, loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
    install(loss_called("mine"))
    registry = load()
    assert registry.get("loss", "mine").__name__ == "Mine"
    [info] = [part for part in registry.describe("loss") if part.name == "mine"]
    assert (info.summary, info.plugin, info.distribution, info.version) == (
        "A loss of mine.",
        "other",
        "other-dist",
        "2.5",
    )
    options = {option.name: option for option in info.options}
    assert (options["sharpness"].type, options["sharpness"].default) == ("int", 3)
    assert (options["sharpness"].bounds, options["sharpness"].help) == (">= 1, < 10", "how sharp")
    assert options["temperature"].type == "float or none"


def test_a_name_that_cannot_be_had_says_why_and_is_not_listed(install: Install, load: Callable[..., Any]) -> None:
    install(
        "import xmclab\n"
        "@xmclab.hookimpl\ndef xmclab_parts(): return [xmclab.part('loss', 'mine', unusable='it needs pixels')]\n"
    )
    registry = load()
    with pytest.raises(ConfigError, match="loss 'mine' cannot be used: it needs pixels"):
        registry.get("loss", "mine")
    assert "mine" not in registry.names("loss")
    assert "mine" not in [part.name for part in registry.describe("loss")]
    assert registry.problems == []


def test_xmclab_recipes_supplies_recipes_by_name(install: Install, load: Callable[..., Any]) -> None:
    install("import xmclab\n@xmclab.hookimpl\ndef xmclab_recipes(): return {'r': 'folder/r.yaml'}\n")
    registry = load()
    assert registry.recipe("r") == Path("folder/r.yaml")
    with pytest.raises(ConfigError, match=r"unknown recipe 'unidecc'.*did you mean 'unidec'"):
        registry.recipe("unidecc")


COMMANDS = """
import xmclab

def greet(name: str = "you", loudly: bool = False) -> None:
    '''Say hello.

    And nothing else.
    '''
    print(f"hello {name}{'!' * loudly}")

not_a_command = 3

@xmclab.hookimpl
def xmclab_commands():
    return [xmclab.command("greet", greet), *MORE]
"""


def commands(*more: str) -> str:
    """A plugin that supplies the command `greet` and these calls of `xmclab.command`."""
    return COMMANDS.replace("MORE", f"[{', '.join(more)}]")


def test_xmclab_commands_supplies_commands_by_name(install: Install, load: Callable[..., Any]) -> None:
    lazy = "xmclab.command('later', 'no_such_module_anywhere:command', help='Later.')"
    install(commands(lazy, "xmclab.command('noun', not_a_command, help='None.')"))
    registry = load()
    assert registry.problems == []
    ours = {"bench", "report", "tune", "synthetic", "check", "new", "data", "score", "doctor"}
    assert {name: text for name, text in registry.commands().items() if name not in ours} == {
        "greet": "Say hello.",
        "later": "Later.",
        "noun": "None.",
    }
    assert registry.command("greet", lambda target: target.__name__) == "greet"
    with pytest.raises(ConfigError, match=r"unknown command 'gret' \(did you mean 'greet'\?\)"):
        registry.command("gret", lambda target: target)
    with pytest.raises(ConfigError, match=r"did you mean 'run'"):
        registry.command("rnu", lambda target: target)
    with pytest.raises(PluginError, match=r"other-dist 2.5.*command 'later': ModuleNotFoundError"):
        registry.command("later", lambda target: target)
    with pytest.raises(PluginError, match=r"command 'noun' must be a function or a typer\.Typer, not 3"):
        registry.command("noun", lambda target: target)
    with pytest.raises(PluginError, match=r"other-dist 2.5.*command 'greet': ZeroDivisionError"):
        registry.command("greet", lambda target: 1 / 0)


def test_nothing_wins_when_two_plugins_supply_a_command(install: Install, load: Callable[..., Any]) -> None:
    install(commands("xmclab.command('bench', greet)"))
    registry = load()
    assert ["command 'bench' is supplied by both" in str(problem) for problem in registry.problems] == [True]
    with pytest.raises(PluginError, match=r"supplied by both .*use 'other_dist\.bench' or 'xmclab\.bench'"):
        registry.command("bench", lambda target: target)
    assert registry.command("other_dist.bench", lambda target: target.__name__) == "greet"
    assert registry.command("xmclab.bench", lambda target: target.__name__) == "bench"
    assert {"other_dist.bench", "xmclab.bench", "report", "greet"} <= registry.commands().keys()
    assert "bench" not in registry.commands()


def test_a_file_cannot_supply_commands(tmp_path: Path, load: Callable[..., Any]) -> None:
    (tmp_path / "mine.py").write_text(commands())
    with pytest.raises(PluginError, match=r"supplies commands \(greet\), which only an installed plugin can: give it"):
        load().with_file(tmp_path / "mine.py")


def test_xmclab_presets_supplies_presets_by_name(install: Install, load: Callable[..., Any]) -> None:
    install("import xmclab\n@xmclab.hookimpl\ndef xmclab_presets(): return {'LF-Mine-1.3M': 'folder/p.yaml'}\n")
    registry = load()
    assert registry.preset("LF-Mine-1.3M") == Path("folder/p.yaml")
    assert "LF-Mine-1.3M" in registry.names("preset")
    with pytest.raises(ConfigError, match=r"unknown preset 'LF-Mine-1.3'.*did you mean 'LF-Mine-1.3M'"):
        registry.preset("LF-Mine-1.3")


def test_xmclab_datasets_supplies_data_sets_by_name(install: Install, load: Callable[..., Any]) -> None:
    install("import xmclab\n@xmclab.hookimpl\ndef xmclab_datasets(): return {'d': 'folder/d'}\n")
    registry = load()
    assert registry.dataset("d") == Path("folder/d")
    with pytest.raises(DataError, match=r"unknown dataset 'debain'.*did you mean 'debian'"):
        registry.dataset("debain")


def test_an_unknown_name_may_be_the_broken_plugins(install: Install, load: Callable[..., Any]) -> None:
    install("raise RuntimeError('out of order')")
    registry = load()
    with pytest.raises(PluginError, match=r"unknown loss 'theirs'.*other-dist 2\.5.*out of order") as caught:
        registry.get("loss", "theirs")
    assert caught.value.exit_code == 4
    with pytest.raises(ConfigError, match=r"did you mean 'supcon'.*out of order"):
        registry.get("loss", "supconn")
    with pytest.raises(PluginError, match=r"unknown recipe 'other'"):
        registry.recipe("other")


def test_nothing_wins_when_two_plugins_supply_a_name(
    install: Install, loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
    install(loss_called("ds"))
    registry = load()
    with pytest.raises(PluginError, match="supplied by both") as caught:
        registry.get("loss", "ds")
    for words in ("xmclab 0.", "(plugin losses)", "other-dist 2.5 (plugin other)", "'other_dist.ds' or 'xmclab.ds'"):
        assert words in str(caught.value)
    assert registry.get("loss", "other_dist.ds").__name__ == "Mine"
    assert registry.get("loss", "other-dist.ds").__name__ == "Mine"
    assert registry.get("loss", "xmclab.ds").__name__ == "DecoupledSoftmax"
    assert "ds" not in registry.names("loss")
    assert {"xmclab.ds", "other_dist.ds", "bce"} <= set(registry.names("loss"))
    assert len([part for part in registry.describe("loss") if "supplied by both" in part.problem]) == 2


@pytest.mark.parametrize(("kind", "name"), [("recipe", "unidec"), ("dataset", "tiny")])
def test_nothing_wins_for_recipes_and_datasets_either(
    install: Install, kind: str, name: str, load: Callable[..., Any]
) -> None:
    install(f"import xmclab\n@xmclab.hookimpl\ndef xmclab_{kind}s(): return {{'{name}': 'mine'}}")
    registry = load()
    with pytest.raises(PluginError, match="supplied by both"):
        getattr(registry, kind)(name)
    assert getattr(registry, kind)(f"other_dist.{name}") == Path("mine")
    assert getattr(registry, kind)(f"xmclab.{name}").exists()


def test_a_file_is_a_plugin_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
    file = tmp_path / "my_loss.py"
    file.write_text("print('hi')\n" + loss_called("mine"))
    before = load()
    registry = before.with_file(file)
    assert registry.get("loss", "mine") is registry.with_file(file).get("loss", "mine")
    assert "mine" not in before.names("loss")
    assert registry.problems == []
    assert capsys.readouterr().out == ""


def test_files_are_those_added_to_what_is_installed(tmp_path: Path, loss_called: Callable[..., Any]) -> None:
    file = tmp_path / "my_loss.py"
    file.write_text(loss_called("mine"))
    unversioned = Registry([], [Origin("other", "other-dist", "")])
    assert unversioned.with_file(file).files == [str(file)]


def test_a_file_does_not_shadow_a_part(
    tmp_path: Path, loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
    file = tmp_path / "my_loss.py"
    file.write_text(loss_called("ds"))
    registry = load().with_file(file)
    with pytest.raises(PluginError, match=r"both xmclab .* and my_loss \(plugin .*my_loss\.py\)"):
        registry.get("loss", "ds")
    assert registry.get("loss", "my_loss.ds").__name__ == "Mine"


def test_a_loss_without_docstring_is_summed_up_by_its_module(
    install: Install, loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
    install(
        '"""The module speaks."""\n'
        + loss_called("mine").replace("'''A loss of mine.\n\n    Formula: nothing.\n    '''", "")
    )
    [info] = [part for part in load().describe("loss") if part.name == "mine"]
    assert info.summary == "The module speaks."


def test_an_unknown_kind_is_refused_with_a_suggestion(load: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'sampler'"):
        load().describe("samplr")
    with pytest.raises(ConfigError, match="did you mean 'loss'"):
        load().get("los", "ds")
