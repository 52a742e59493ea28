"""Plugins at fault: what the command line says of each, and that nobody else suffers.

39  a plugin that raises at import
40  two plugins that use the same name
41  a misspelt hook or argument
42  a plugin of another interface version, or a part that breaks its contract
43  a tracker that raises

More of each: tests/host/test_load.py, tests/runs/test_observers.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xmclab.host.registry import load_registry

SMALL = [
    "recipe=none",
    "data=tiny",
    "encoder=bag",
    "encoder.dim=16",
    "head.de.dim=16",
    "head.clf.dim=16",
    "sampler.batch_size=512",
]
SMALL += ["epochs=1", "baseline=none"]
LOSS = """
from dataclasses import dataclass
import xmclab
from xmclab.api import MultiClassLoss

@dataclass
class Mine(MultiClassLoss):
    def terms(self, s_QP, y_QP):
        return -s_QP

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("loss", "NAME", Mine)]
"""
Install = Callable[..., str]
Call = Callable[..., tuple[int, str, str]]


def loss(name: str, body: str = "return -s_QP") -> str:
    return LOSS.replace("NAME", name).replace("return -s_QP", body)


def hook(signature: str, body: str = "pass") -> str:
    return f"import xmclab\n@xmclab.hookimpl\ndef {signature}:\n    {body}\n"


def xmclab(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """The command line in a process of its own, which finds the plugins that a test installs."""
    command = [sys.executable, "-m", "xmclab", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def losses(folder: Path) -> list[tuple[float, dict[str, float]]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    return [(record["loss"], record["terms"]) for record in records if record["event"] == "step"]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, call: Call) -> Call:
    """The command line in this process, which finds the plugins that a test installs."""
    monkeypatch.setattr("xmclab.host.registry.default_registry", lambda: load_registry(os.environ))
    return call


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print('noise')\nraise SystemExit(3)", "import: SystemExit: 3"),
        ("print('noise')\nraise RuntimeError('out of order')", "import: RuntimeError: out of order"),
    ],
)
def test_39_a_plugin_that_raises_at_import(install: Install, fresh: Call, source: str, reason: str) -> None:
    install(source, "broken-dist", "0.9", "broken")
    install(loss("theirs"))
    code, out, err = fresh("parts", "loss", "--json")
    document = json.loads(out)
    assert (code, [(plugin["distribution"], plugin["reason"]) for plugin in document["broken"]]) == (
        0,
        [("broken-dist", reason)],
    )
    assert {"ds", "theirs"} <= {part["name"] for part in document["parts"]}
    assert "noise" in err
    code, out, err = fresh("run", *SMALL, "loss.clf=ds+broken", "--dry-run")
    assert (code, out) == (4, "")
    assert f"broken-dist 0.9 (plugin broken): {reason}" in err


def test_39_the_others_train_unless_strict(install: Install, tmp_path: Path) -> None:
    install("print('noise')\nraise SystemExit(3)", "broken-dist", "0.9", "broken")
    install(loss("theirs"))
    code, out, err = xmclab("run", *SMALL, "loss.de=ds+theirs", "--json", "--out", tmp_path / "out")
    assert (code, json.loads(out)["out"]) == (0, str(tmp_path / "out"))
    assert (
        "warning: plugin broken: skipped because broken-dist 0.9 (plugin broken) is broken: import: SystemExit: 3"
        in err
    )
    code, out, err = xmclab("recipes", XMCLAB_STRICT="1")
    assert (code, out) == (4, "")
    assert "SystemExit: 3" in err


def test_40_two_distributions_supply_one_name(install: Install, fresh: Call) -> None:
    install(loss("mine"), "dist-a", "1.0", "a")
    install(loss("mine"), "dist-b", "2.0", "b")
    code, out, err = fresh("run", *SMALL, "loss.de=mine", "--dry-run")
    assert (code, out) == (4, "")
    for words in ("dist-a 1.0 (plugin a)", "dist-b 2.0 (plugin b)", "use 'dist_a.mine' or 'dist_b.mine'"):
        assert words in err
    code, out, _ = fresh("run", *SMALL, "loss.de=dist_b.mine", "--dry-run", "--json")
    assert (code, json.loads(out)["loss"]["de"]["expression"]) == (0, "dist_b.mine")


def test_40_two_distributions_use_one_entry_point_name(install: Install, fresh: Call) -> None:
    install(loss("first"), "dist-a", "1.0", "same")
    install(loss("second"), "dist-b", "2.0", "same")
    code, _, err = fresh("run", *SMALL, "loss.de=first", "--dry-run")
    assert code == 4
    assert "dist-a 1.0 (plugin same) and dist-b 2.0 (plugin same)" in err
    code, _, err = fresh("run", *SMALL, "loss.de=dist_a.first+dist_b.second", "--dry-run")
    assert code == 0
    assert "warning: plugin same: two distributions use this entry-point name" in err


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (hook("xmclab_prats()"), "there is no hook 'xmclab_prats' (did you mean 'xmclab_parts'?)"),
        ("def xmclab_recipies(): ...", "there is no hook 'xmclab_recipies' (did you mean 'xmclab_recipes'?)"),
        (hook("xmclab_parts(config)"), "xmclab_parts has no argument 'config' (it takes no arguments)"),
        (hook("xmclab_parts(config)", "return []"), "xmclab_parts has no argument 'config' (it takes no arguments)"),
    ],
)
def test_41_a_misspelt_hook_or_argument(
    install: Install, fresh: Call, tmp_path: Path, source: str, reason: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    code, out, err = fresh("run", *SMALL, f"plugin={tmp_path / 'mine.py'}", "--dry-run")
    assert (code, out) == (4, "")
    assert err == f"error: mine (plugin {tmp_path / 'mine.py'}): {reason}\n"
    install(source)
    code, _, err = fresh("run", *SMALL, "loss.de=ds+theirs", "--dry-run")
    assert code == 4
    assert reason in err


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "xmclab_api = 99\n" + loss("mine"),
            "built for version 99 of the plugin interface, but this xmclab has version 1",
        ),
        (loss("mine").replace("@dataclass\n", ""), "loss 'mine' must be a dataclass: decorate Mine with @dataclass"),
    ],
)
def test_42_another_interface_version_or_no_dataclass(install: Install, fresh: Call, source: str, reason: str) -> None:
    install(source)
    code, out, err = fresh("run", *SMALL, "loss.de=mine", "--dry-run")
    assert (code, out) == (4, "")
    assert f"other-dist 2.5 (plugin other): {reason}" in err


def test_42_a_loss_of_the_wrong_shape_stops_the_run(fresh: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(loss("mine", "return s_QP.sum(1)"))
    plugin = f"plugin={tmp_path / 'mine.py'}"
    code, out, err = fresh("run", *SMALL, plugin, "loss.de=mine", "--out", tmp_path / "out")
    assert (code, out) == (4, "")
    assert "loss 'mine': terms() returned shape (" in err


def test_42_a_loss_that_edits_its_scores_reaches_no_other_term(fresh: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(loss("mine", "y_QP.zero_(); return -s_QP.mul_(2)"))
    plugin = f"plugin={tmp_path / 'mine.py'}"
    found = []
    for name, expression in (("alone", "ds"), ("beside", "mine+ds")):
        code, _, err = fresh("run", *SMALL, plugin, f"loss.de={expression}", "--out", tmp_path / name)
        assert code == 0, err
        found.append(losses(tmp_path / name)[0][1])
    alone, beside = found
    # With another term the scores take another way: one unit in the last place.
    assert {name: beside[name] for name in alone} == pytest.approx(alone, rel=2e-7)


def test_43_trackers_that_raise(install: Install, tmp_path: Path) -> None:
    tracker = (
        loss("mine")
        .replace("MultiClassLoss", "Tracker")
        .replace("def terms(self, s_QP, y_QP)", "def log(self, record)")
        .replace('"loss"', '"tracker"')
    )
    install(tracker.replace("return -s_QP", "raise RuntimeError('out of order')"))
    every_run = tracker.replace('"mine", Mine', '"watch", Mine, always=True').replace(
        "return -s_QP", "1 / record['epoch']"
    )
    install(every_run, "watch-dist", "0.3", "watch")
    code, _, err = xmclab("run", *SMALL, "tracker=mine", "--out", tmp_path / "faulty")
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("warning: tracker")] == [
        "warning: tracker watch: KeyError: 'epoch', at 'start'; disabled for the rest of this run",
        "warning: tracker mine: RuntimeError: out of order, at 'start'; disabled for the rest of this run",
    ]
    code, _, _ = xmclab("run", *SMALL, "--out", tmp_path / "plain", XMCLAB_PLUGINS="xmclab")
    assert code == 0
    assert losses(tmp_path / "faulty") == losses(tmp_path / "plain")


@pytest.mark.parametrize("reduction", ["psl", "pal_n"])
def test_42_a_closed_form_of_wrong_shape_is_named(
    reduction: str, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "vague.py").write_text(
        "import xmclab\n"
        "from dataclasses import dataclass\n"
        "from xmclab_losses.ds import DecoupledSoftmax\n"
        "@dataclass\n"
        "class Vague(DecoupledSoftmax):\n"
        "    def value_and_grad(self, s_E, negatives_Q, pairs):\n"
        "        return s_E, s_E, negatives_Q\n"
        "@xmclab.hookimpl\n"
        "def xmclab_parts():\n"
        "    return [xmclab.part('loss', 'vague', Vague)]\n"
    )
    small = ["data=tiny", "epochs=1", "encoder.dim=16", "head.clf.dim=16", "head.de=none", "baseline=none"]
    parts = [f"plugin={tmp_path / 'vague.py'}", "loss.clf=vague", f"reduction.clf={reduction}"]
    code, _, stderr = call("run", *small, *parts, "--out", tmp_path / "run")
    assert code == 4
    assert "Vague: value_and_grad() must return a sum and its gradients" in stderr


def test_a_file_that_supplies_nothing_is_refused(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "empty.py").write_text("def parts():\n    return []\n")
    code, _, stderr = call("run", f"plugin={tmp_path / 'empty.py'}", "data=tiny")
    assert code == 4
    assert "supplies nothing: none of its functions is marked with @xmclab.hookimpl" in stderr
