"""Loading plugins: a faulty one is left out with the reason and does not break the others."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmclab.errors import ConfigError, PluginError, XmclabError
from xmclab.host import hookspecs
from xmclab.host.hookspecs import KINDS

HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("xmclab_"))
Install = Callable[..., str]


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_every_hook_is_a_plugin(hook: str, install: Install, load: Callable[..., Any]) -> None:
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
def test_a_raising_plugin_is_left_out_and_the_others_work(
    install: Install, source: str, reason: str, load: Callable[..., Any]
) -> None:
    install(source)
    registry = load()
    assert registry.get("loss", "ds")
    [problem] = registry.problems
    assert reason in str(problem)
    assert "other-dist 2.5 (plugin other)" in str(problem)


def test_what_a_plugin_prints_leaves_stdout_alone(
    install: Install, capsys: pytest.CaptureFixture[str], loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
    install("print('hello from the import')\n" + loss_called("mine"))
    load()
    output = capsys.readouterr()
    assert output.out == ""
    assert "hello from the import" in output.err


def test_strict_makes_every_problem_an_error(
    install: Install, loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
    install("raise RuntimeError('out of order')")
    install(loss_called("ds"), "third")
    with pytest.raises(PluginError) as caught:
        load(XMCLAB_STRICT="1")
    assert "out of order" in str(caught.value)
    assert "'ds' is supplied by both" in str(caught.value)
    assert load(XMCLAB_STRICT="0").broken


def test_two_distributions_with_one_entry_point_name(
    install: Install, loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
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
def test_a_plugin_that_breaks_the_rules_is_left_out(
    install: Install, source: str, reason: str, load: Callable[..., Any]
) -> None:
    install("import xmclab\n" + source)
    registry = load()
    [broken] = registry.broken
    assert reason in broken.reason
    with pytest.raises(PluginError, match="other-dist"):
        load(XMCLAB_STRICT="1")


def test_the_interface_version_of_today_is_fine(
    install: Install, loss_called: Callable[..., Any], load: Callable[..., Any]
) -> None:
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
def test_loading_can_be_limited(
    install: Install,
    limit: str,
    present: set[str],
    absent: set[str],
    loss_called: Callable[..., Any],
    load: Callable[..., Any],
) -> None:
    install(loss_called("mine"))
    registry = load(XMCLAB_PLUGINS=limit)
    names = set(registry.names("loss"))
    assert present <= names
    assert not absent & names
    assert "psl" in registry.names("reduction")
    assert registry.problems == []


def test_a_limit_that_names_nobody_is_reported(load: Callable[..., Any]) -> None:
    [problem] = load(XMCLAB_PLUGINS="unidec,lossse").problems
    assert "'lossse'" in str(problem)
    assert "did you mean 'losses'" in str(problem)


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        (None, ConfigError, "no such file"),
        ("raise RuntimeError('out of order')", PluginError, "out of order"),
        ("def xmclab_part(): return []", PluginError, "did you mean 'xmclab_parts'"),
    ],
)
def test_a_faulty_file_is_an_error(
    tmp_path: Path, source: str | None, error: type[XmclabError], reason: str, load: Callable[..., Any]
) -> None:
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
def test_a_part_that_is_none_is_an_error_when_used(
    install: Install, target: str, reason: str, load: Callable[..., Any]
) -> None:
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
