"""Loading plugins: what they supply is found by name, and a faulty one neither breaks nor shadows another."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xmclab.errors import ConfigError, DataError, PluginError, XmclabError
from xmclab.host import hookspecs
from xmclab.host.hookspecs import KINDS
from xmclab.host.load import Origin
from xmclab.host.registry import Registry, load_registry

HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("xmclab_"))
LOSS = """
from dataclasses import dataclass
import xmclab
from xmclab.api import MultiClassLoss

@dataclass
class Mine(MultiClassLoss):
    '''A loss of mine.

    Formula: nothing.
    '''
    sharpness: int = xmclab.option(3, "how sharp", ge=1, lt=10)

    def terms(self, s_QP, y_QP):
        return -s_QP

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("loss", "NAME", Mine)]
"""
Install = Callable[..., str]


def loss_called(name: str) -> str:
    return LOSS.replace("NAME", name)


def load(**environment: str) -> Registry:
    return load_registry(environment)


def test_built_in_parts_come_without_problems() -> None:
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


def test_xmclab_parts_supplies_parts_by_name(install: Install) -> None:
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


def test_a_name_that_cannot_be_had_says_why_and_is_not_listed(install: Install) -> None:
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


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_every_hook_is_a_plugin(hook: str, install: Install) -> None:
    examples = doctest.DocTestParser().get_examples(getattr(hookspecs, hook).__doc__)
    assert examples, f"{hook} shows no example"
    install("".join(example.source for example in examples))
    registry = load()
    assert not registry.broken
    added = [claim for claim in registry.claims if claim.origin.plugin == "other"]
    assert added
    kinds = KINDS if hook == "xmclab_parts" else (hook.removeprefix("xmclab_").removesuffix("s"),)
    assert all(claim.kind in kinds for claim in added)


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test_under_its_name(hook: str) -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")]
    assert any(f"def test_{hook}_" in source for source in sources), f"write a test_{hook}_... that fails without it"


def test_xmclab_recipes_supplies_recipes_by_name(install: Install) -> None:
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


def test_xmclab_commands_supplies_commands_by_name(install: Install) -> None:
    lazy = "xmclab.command('later', 'no_such_module_anywhere:command', help='Later.')"
    install(commands(lazy, "xmclab.command('noun', not_a_command, help='None.')"))
    registry = load()
    assert registry.problems == []
    ours = {"bench", "report", "synthetic", "check", "new", "data"}
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


def test_nothing_wins_when_two_plugins_supply_a_command(install: Install) -> None:
    install(commands("xmclab.command('bench', greet)"))
    registry = load()
    assert ["command 'bench' is supplied by both" in str(problem) for problem in registry.problems] == [True]
    with pytest.raises(PluginError, match=r"supplied by both .*use 'other_dist\.bench' or 'xmclab\.bench'"):
        registry.command("bench", lambda target: target)
    assert registry.command("other_dist.bench", lambda target: target.__name__) == "greet"
    assert registry.command("xmclab.bench", lambda target: target.__name__) == "bench"
    assert {"other_dist.bench", "xmclab.bench", "report", "greet"} <= registry.commands().keys()
    assert "bench" not in registry.commands()


def test_a_file_cannot_supply_commands(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(commands())
    with pytest.raises(PluginError, match=r"supplies commands \(greet\), which only an installed plugin can: give it"):
        load().with_file(tmp_path / "mine.py")


def test_xmclab_datasets_supplies_data_sets_by_name(install: Install) -> None:
    install("import xmclab\n@xmclab.hookimpl\ndef xmclab_datasets(): return {'d': 'folder/d'}\n")
    registry = load()
    assert registry.dataset("d") == Path("folder/d")
    with pytest.raises(DataError, match=r"unknown dataset 'debain'.*did you mean 'debian'"):
        registry.dataset("debain")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('out of order')", "RuntimeError: out of order"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("def", "SyntaxError"),
        ("import xmclab\n@xmclab.hookimpl\ndef xmclab_parts(): return [1 / 0]", "ZeroDivisionError"),
    ],
)
def test_a_raising_plugin_is_left_out_and_the_others_work(install: Install, source: str, reason: str) -> None:
    install(source)
    registry = load()
    assert registry.get("loss", "ds")
    [problem] = registry.problems
    assert reason in str(problem)
    assert "other-dist 2.5 (plugin other)" in str(problem)


def test_an_unknown_name_may_be_the_broken_plugins(install: Install) -> None:
    install("raise RuntimeError('out of order')")
    registry = load()
    with pytest.raises(PluginError, match=r"unknown loss 'theirs'.*other-dist 2\.5.*out of order") as caught:
        registry.get("loss", "theirs")
    assert caught.value.exit_code == 4
    with pytest.raises(ConfigError, match=r"did you mean 'supcon'.*out of order"):
        registry.get("loss", "supconn")
    with pytest.raises(PluginError, match=r"unknown recipe 'other'"):
        registry.recipe("other")


def test_what_a_plugin_prints_leaves_stdout_alone(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("print('hello from the import')\n" + loss_called("mine"))
    load()
    output = capsys.readouterr()
    assert output.out == ""
    assert "hello from the import" in output.err


def test_strict_makes_every_problem_an_error(install: Install) -> None:
    install("raise RuntimeError('out of order')")
    install(loss_called("ds"), "third")
    with pytest.raises(PluginError) as caught:
        load(XMCLAB_STRICT="1")
    assert "out of order" in str(caught.value)
    assert "'ds' is supplied by both" in str(caught.value)
    assert load(XMCLAB_STRICT="0").broken


def test_nothing_wins_when_two_plugins_supply_a_name(install: Install) -> None:
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
def test_nothing_wins_for_recipes_and_datasets_either(install: Install, kind: str, name: str) -> None:
    install(f"import xmclab\n@xmclab.hookimpl\ndef xmclab_{kind}s(): return {{'{name}': 'mine'}}")
    registry = load()
    with pytest.raises(PluginError, match="supplied by both"):
        getattr(registry, kind)(name)
    assert getattr(registry, kind)(f"other_dist.{name}") == Path("mine")
    assert getattr(registry, kind)(f"xmclab.{name}").exists()


def test_two_distributions_with_one_entry_point_name(install: Install) -> None:
    install(loss_called("first"), "dist-a", "1.0", "same")
    install(loss_called("second"), "dist-b", "2.0", "same")
    registry = load()
    assert any("dist-a 1.0" in str(p) and "dist-b 2.0" in str(p) for p in registry.problems)
    with pytest.raises(PluginError, match=r"dist-a 1\.0 .*dist-b 2\.0 .*'dist_a\.first'"):
        registry.get("loss", "first")
    assert registry.get("loss", "dist_a.first")
    assert registry.get("loss", "dist_b.second")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("@xmclab.hookimpl\ndef xmclab_prats(): return []", "no hook 'xmclab_prats' (did you mean 'xmclab_parts'?)"),
        ("def xmclab_recipies(): return {}", "no hook 'xmclab_recipies' (did you mean 'xmclab_recipes'?)"),
        ("def xmclab_parts(): return []", "xmclab_parts is not marked with @xmclab.hookimpl"),
        ("@xmclab.hookimpl\ndef xmclab_parts(config): return []", "has no argument 'config' (it takes no arguments)"),
        (
            "@xmclab.hookimpl\ndef xmclab_parts(): return ['ds']",
            "must return a list of xmclab.part(kind, name, target)",
        ),
        ("@xmclab.hookimpl\ndef xmclab_recipes(): return ['a.yaml']", "xmclab_recipes must return a dict"),
        ("@xmclab.hookimpl\ndef xmclab_datasets(): return {'a': 3}", "xmclab_datasets must return a dict"),
        (
            "@xmclab.hookimpl\ndef xmclab_parts(): return [xmclab.part('los', 'a', 'b:c')]",
            "unknown kind of part 'los' (did you mean 'loss'?)",
        ),
        (
            "@xmclab.hookimpl\ndef xmclab_parts(): return [xmclab.part('loss', 'a+b', 'b:c')]",
            "'a+b' is not a valid name",
        ),
        (
            "@xmclab.hookimpl\ndef xmclab_command(): return []",
            "(did you mean 'xmclab_commands'?)",
        ),
        ("@xmclab.hookimpl\ndef xmclab_commands(): return ['a']", "must return a list of xmclab.command(name, target)"),
        ("@xmclab.hookimpl\ndef xmclab_commands(): return print", "must return a list of xmclab.command(name, target)"),
        ("@xmclab.hookimpl\ndef xmclab_commands(): return [xmclab.command('--a', print)]", "'--a' is not a valid name"),
        ("@xmclab.hookimpl\ndef xmclab_commands(): return [xmclab.command('run', print)]", "command 'run' is built in"),
        ("xmclab_api = 99", "built for version 99 of the plugin interface, but this xmclab has version 1"),
    ],
)
def test_a_plugin_that_breaks_the_rules_is_left_out(install: Install, source: str, reason: str) -> None:
    install("import xmclab\n" + source)
    registry = load()
    [broken] = registry.broken
    assert reason in broken.reason
    with pytest.raises(PluginError, match="other-dist"):
        load(XMCLAB_STRICT="1")


def test_the_interface_version_of_today_is_fine(install: Install) -> None:
    install(f"xmclab_api = {hookspecs.API_VERSION}\n" + loss_called("mine"))
    assert "mine" in load().names("loss")


@pytest.mark.parametrize(
    ("limit", "present", "absent"),
    [
        ("other", {"mine"}, {"ds", "bce"}),
        ("Other_Dist", {"mine"}, {"ds", "bce"}),
        ("losses, other", {"mine", "ds", "bce"}, {"pml.SupConLoss"}),
        ("xmclab", {"ds", "bce", "supcon", "pml.SupConLoss"}, {"mine"}),
        ("", set(), {"ds", "bce", "mine"}),
    ],
)
def test_loading_can_be_limited(install: Install, limit: str, present: set[str], absent: set[str]) -> None:
    install(loss_called("mine"))
    registry = load(XMCLAB_PLUGINS=limit)
    names = set(registry.names("loss"))
    assert present <= names
    assert not absent & names
    assert "psl" in registry.names("reduction")
    assert registry.problems == []


def test_a_limit_that_names_nobody_is_reported() -> None:
    [problem] = load(XMCLAB_PLUGINS="unidec,lossse").problems
    assert "'lossse'" in str(problem)
    assert "did you mean 'losses'" in str(problem)


def test_a_file_is_a_plugin_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my_loss.py"
    file.write_text("print('hi')\n" + loss_called("mine"))
    before = load()
    registry = before.with_file(file)
    assert registry.get("loss", "mine") is registry.with_file(file).get("loss", "mine")
    assert "mine" not in before.names("loss")
    assert registry.problems == []
    assert capsys.readouterr().out == ""


def test_files_are_those_added_to_what_is_installed(tmp_path: Path) -> None:
    file = tmp_path / "my_loss.py"
    file.write_text(loss_called("mine"))
    unversioned = Registry([], [Origin("other", "other-dist", "")])
    assert unversioned.with_file(file).files == [str(file)]


def test_a_file_does_not_shadow_a_part(tmp_path: Path) -> None:
    file = tmp_path / "my_loss.py"
    file.write_text(loss_called("ds"))
    registry = load().with_file(file)
    with pytest.raises(PluginError, match=r"both xmclab .* and my_loss \(plugin .*my_loss\.py\)"):
        registry.get("loss", "ds")
    assert registry.get("loss", "my_loss.ds").__name__ == "Mine"


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        (None, ConfigError, "no such file"),
        ("raise RuntimeError('out of order')", PluginError, "out of order"),
        ("def xmclab_part(): return []", PluginError, "did you mean 'xmclab_parts'"),
    ],
)
def test_a_faulty_file_is_an_error(tmp_path: Path, source: str | None, error: type[XmclabError], reason: str) -> None:
    file = tmp_path / "faulty.py"
    if source is not None:
        file.write_text(source)
    for _ in range(2):
        with pytest.raises(error, match=reason):
            load().with_file(file)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module_anywhere:Loss", "ModuleNotFoundError"),
        ("xmclab.api:NoSuchLoss", "AttributeError"),
        ("xmclab.api:Sampler", "must be a subclass of xmclab.api.Loss"),
        ("xmclab.keys:dataclass", "must be a subclass of xmclab.api.Loss"),
        ("xmclab.api:MultiClassLoss", "does not implement: terms"),
        ("MODULE:Plain", "decorate Plain with @dataclass"),
        ("MODULE:Odd", "the option's type cannot be used: name 'Nonsense' is not defined"),
        ("MODULE:Bounded", "the option's type cannot be used"),
    ],
)
def test_a_part_that_is_none_is_an_error_when_used(install: Install, target: str, reason: str) -> None:
    source = f"""
from __future__ import annotations
from dataclasses import dataclass
import xmclab
from xmclab.api import MultiClassLoss

class Plain(MultiClassLoss):
    sharpness: int = 3
    def terms(self, s_QP, y_QP): return s_QP

@dataclass
class Odd(Plain):
    level: Nonsense = 3

@dataclass
class Bounded(Plain):
    level: bytes.fromhex = 3

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("loss", "fine", "xmclab_losses.ds:DecoupledSoftmax"), xmclab.part("loss", "bad", "{target}")]
"""
    module = install(source.replace("MODULE", "SELF"))
    file = Path(sys.path[0]) / f"{module}.py"
    file.write_text(file.read_text().replace("SELF", module))
    registry = load()
    assert registry.get("loss", "fine")
    with pytest.raises(PluginError, match=r"other-dist 2\.5") as caught:
        registry.get("loss", "bad")
    assert reason in str(caught.value)
    [info] = [part for part in registry.describe("loss") if part.name == "bad"]
    assert reason in info.problem


def test_a_loss_without_docstring_is_summed_up_by_its_module(install: Install) -> None:
    install(
        '"""The module speaks."""\n'
        + LOSS.replace("NAME", "mine").replace("'''A loss of mine.\n\n    Formula: nothing.\n    '''", "")
    )
    [info] = [part for part in load().describe("loss") if part.name == "mine"]
    assert info.summary == "The module speaks."


def test_an_unknown_kind_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sampler'"):
        load().describe("samplr")
    with pytest.raises(ConfigError, match="did you mean 'loss'"):
        load().get("los", "ds")
