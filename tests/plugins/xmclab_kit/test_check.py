"""`xmclab check`, the contracts for pytest, and the page that lists the laws."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmclab.host.hookspecs import KINDS
from xmclab.host.load import Broken, Claim, Origin
from xmclab.host.registry import Registry, default_registry
from xmclab.objectives.reductions.psl import Psl
from xmclab_kit import examine, laws_of, loss_contract, reduction_contract
from xmclab_kit.contracts import MODULES
from xmclab_kit.structure import structural_laws

Call = Callable[..., tuple[int, str, str]]
BROKEN = Path(__file__).parent / "broken"
LOSSES = f"plugin={BROKEN / 'losses.py'}"
PAGE = Path(__file__).parents[3] / "docs" / "check-a-part.md"


def test_a_part_that_keeps_the_laws(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("check", "reduction:psl", "index:exact", "reduction:ova(cells='sum')")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "reduction:psl: keeps the laws (14 of 14 hold)",
        "index:exact: keeps the laws (2 of 2 hold)",
        "reduction:ova(cells='sum'): keeps the laws (14 of 14 hold)",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "law", "seen"),
    [
        ("part__no_dataclass", "part", "must be a dataclass: decorate NoDataclass with @dataclass"),
        ("shape__mean", "shape", "terms() returned shape () for scores of shape (1, 1)"),
        ("shape__type", "shape", "terms() returned torch.float32 for scores of torch.float64"),
        ("shape__raises", "shape", "raised TypeError: unsupported operand type(s) for /"),
        ("unchanged__scores", "unchanged", "terms() wrote into s_QP"),
    ],
)
def test_a_broken_law_is_named_with_its_smallest_input_and_the_way_to_mend_it(
    name: str, law: str, seen: str, call: Call
) -> None:
    code, out, err = call("check", f"loss:{name}", LOSSES)
    assert code == 4
    assert f"error: loss:{name}: breaks the law {law!r}\n" in err
    assert seen in out
    assert "Traceback" not in out + err
    (fix,) = (known.fix for known in laws_of("loss") if known.name == law)
    assert fix in out
    assert law == "part" or "on    s_QP = [[" in out


def test_the_smallest_input_is_small_and_the_same_each_time() -> None:
    registry = Registry([], []).with_file(BROKEN / "losses.py")
    found = [
        verdict.violation
        for _ in range(2)
        for verdict in examine(registry, "loss", "edge_rows__mean_of_none")
        if verdict.violation
    ]
    assert str(found[0]) == str(found[1])
    assert found[0].example == "s_QP = [[0.]]\ny_QP = [[1.]]"


def test_json_has_every_law(call: Call) -> None:
    code, out, _ = call("check", "loss:unchanged__scores", LOSSES, "--json")
    (document,) = json.loads(out)
    assert code == 4
    assert (document["part"], document["keeps"]) == ("loss:unchanged__scores", False)
    assert [law["law"] for law in document["laws"]] == [law.name for law in laws_of("loss")]
    (broken,) = (law for law in document["laws"] if law["state"] == "broken")
    assert broken["law"] == "unchanged"
    assert all(broken[key] for key in ("says", "seen", "example", "fix"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either parts or --all"),
        (["loss:ds", "--all"], "give either parts or --all"),
        (["ds"], "ds: not KIND:NAME"),
        (["los:ds"], "did you mean 'loss'?"),
        (["loss:dss"], "did you mean 'ds'?"),
        (["loss:ds(temprature=1)"], "did you mean 'temperature'?"),
        (["loss:ds(temperature=0)"], "should be greater than 0"),
        (["loss:ds(temperature=1)+bce(temperature=1)"], "not a single part with its options"),
        (["loss:ds", "plugin=./nowhere.py"], "no such file"),
    ],
)
def test_what_cannot_be_asked(arguments: list[str], message: str, call: Call) -> None:
    code, out, err = call("check", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_without_hypothesis_the_command_to_install_it_is_shown(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    code, _, err = call("check", "loss:ds")
    assert code == 2
    assert 'pip install "xmclab[testing]"' in err


@pytest.fixture
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry with parts that lack a model or a package, one that breaks a law and one that cannot be imported."""
    origin = Origin("few", "few", "1")
    encoder = Claim("encoder", "hf", default_registry().get("encoder", "hf"), origin)
    tracker = Claim("tracker", "mlflow", default_registry().get("tracker", "mlflow"), origin)
    for package in ("mlflow", "pytorch_metric_learning"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "xmclab_pml.losses", raising=False)
    theirs = Claim("loss", "pml.SupConLoss", "xmclab_pml.losses:SupConLoss", origin)
    typo = Claim("loss", "typo", "no_such_module:Loss", origin)
    loss = Registry([], []).with_file(BROKEN / "losses.py").get("loss", "expression__weight")
    registry = Registry([encoder, tracker, theirs, typo, Claim("loss", "own_weight", loss, origin)], [origin])
    monkeypatch.setattr("xmclab.host.registry.default_registry", lambda: registry)


@pytest.mark.usefixtures("few_parts")
def test_all_checks_every_part_and_passes_over_what_is_not_here(call: Call) -> None:
    code, out, err = call("check", "--all")
    assert code == 4
    assert re.search(r"^encoder:hf: not checked, encoder\.model=distilbert", out, re.MULTILINE)
    assert re.search(r"^tracker:mlflow: not checked, .*pip install", out, re.MULTILINE)
    assert re.search(r"^loss:pml.SupConLoss: not checked, .*pip install", out, re.MULTILINE)
    assert "loss:own_weight: breaks the laws (19 of 20 hold)" in out
    assert re.search(r"^ +seen .*No module named", out, re.MULTILINE)
    assert "error: loss:typo: breaks the law 'part'\n" in err
    assert err.count("error: ") == 2


@pytest.mark.usefixtures("few_parts")
def test_a_part_that_is_asked_for_and_lacks_something_is_an_error(call: Call) -> None:
    assert call("check", "encoder:hf")[0] == 3
    assert call("check", "tracker:mlflow")[0] == 4
    assert call("check", "loss:pml.SupConLoss")[0] == 4


@pytest.fixture
def excused(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """A loss that says which law it does not keep, and the only part of the registry."""
    loss = Registry([], []).with_file(BROKEN / "losses.py").get("loss", "expression__weight")
    laws = {"expression": "its weight is its own", "memory": "it used to list triplets"}
    monkeypatch.setattr(loss, "laws_not_kept", laws)
    origin = Origin("few", "few", "1")
    registry = Registry([Claim("loss", "excused", loss, origin)], [origin])
    monkeypatch.setattr("xmclab.host.registry.default_registry", lambda: registry)
    return loss


def test_a_law_that_a_part_does_not_keep_by_its_nature_is_shown_and_no_error(call: Call, excused: type[Any]) -> None:
    code, out, err = call("check", "--all")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "loss:excused: keeps the laws (19 of 20 hold)",
        "  expression: exempt (declared by the part): its weight is its own",
    ]
    (document,) = json.loads(call("check", "loss:excused", "--json")[1])
    assert document["keeps"]
    states = {law["law"]: (law["state"], law.get("why")) for law in document["laws"]}
    assert states["expression"] == ("not kept", "its weight is its own")
    assert states["memory"] == ("holds", None)
    (law,) = (law for law in laws_of("loss") if law.name == "expression")
    with pytest.raises(pytest.xfail.Exception, match="its weight is its own"):
        loss_contract(excused)(law=law)


def test_all_says_which_plugins_are_broken(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin("other", "other-dist", "2.5")
    registry = Registry([], [origin], [Broken(origin, "ImportError: no such thing")])
    monkeypatch.setattr("xmclab.host.registry.default_registry", lambda: registry)
    code, out, err = call("check", "--all")
    assert code == 4
    assert out.startswith("plugin other: skipped because ")
    assert err == f"error: {out}"
    code, out, _ = call("check", "--all", "--json")
    (document,) = json.loads(out)
    assert (code, document["part"], document["keeps"]) == (4, "plugin other", False)
    assert "no such thing" in document["problem"]


def test_help_needs_neither_torch_nor_hypothesis() -> None:
    code = (
        "import sys; sys.argv = ['xmclab', 'check', '--help']\n"
        "from xmclab import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'hypothesis'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_a_contract_has_a_case_per_law_and_passes_for_a_part_that_keeps_them() -> None:
    contract = reduction_contract(Psl)
    (mark,) = contract.pytestmark  # type: ignore[attr-defined]
    assert mark.args == ("law", laws_of("reduction"))
    assert mark.kwargs["ids"] == [law.name for law in laws_of("reduction")]
    for law in laws_of("reduction"):
        contract(law=law)


def test_a_contract_fails_at_the_broken_law_and_skips_what_builds_on_it() -> None:
    mean = Registry([], []).with_file(BROKEN / "losses.py").get("loss", "shape__mean")
    contract = loss_contract(mean, temperature=0.5)
    laws = {law.name: law for law in laws_of("loss")}
    contract(law=laws["options"])
    with pytest.raises(pytest.fail.Exception, match="terms\\(\\) returned shape \\(\\)"):
        contract(law=laws["shape"])
    with pytest.raises(pytest.skip.Exception, match="shape"):
        contract(law=laws["learns"])


def listed(mark: str) -> list[tuple[str, str]]:
    """(law, what it says) of a table of the page."""
    table = PAGE.read_text(encoding="utf-8").partition(f"<!-- laws of {mark} -->")[2].partition("<!--")[0]
    return re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_lists_the_laws(kind: str) -> None:
    general = listed("every kind")
    assert general == [(law.name, law.says) for law in structural_laws()]
    own = listed(kind) if kind in MODULES else []
    assert general + own == [(law.name, law.says) for law in laws_of(kind)]


def test_laws_build_on_laws_that_come_before_them() -> None:
    for kind in KINDS:
        names = [law.name for law in laws_of(kind)]
        for place, law in enumerate(laws_of(kind)):
            assert set(law.needs) <= set(names[:place]), law.name
