"""Mistakes in a config: exit code 2, every problem in one message with its place, and nothing executed or written.

44  unknown, wrong, missing and repeated words on the command line; expressions that would be code
45  recipe files that are missing, malformed, endless or too large

What each kind of mistake is told alone: tests/host, tests/objectives/test_expr.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
NEEDY = """
from dataclasses import dataclass
import xmclab
from xmclab.api import Miner, option

@dataclass
class Needy(Miner):
    depth: int = option(help="how deep")

    def sample(self, rows_Q, n, exclude_NL, rng):
        raise NotImplementedError

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("miner", "needy", Needy)]
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# 44

WORDS = {
    "recipe=unidecc": "recipe: unknown recipe 'unidecc' (did you mean 'unidec'?)",
    "miner=needy": "miner.depth: must be set (int) (how deep)",
    "sampler=clustr": "sampler: unknown sampler 'clustr' (did you mean 'cluster'?)",
    "pool.bta=3": "pool.bta: unknown key (did you mean 'pool.beta'?)",
    "head.de.dimm=3": "head.de.dimm: unknown key (did you mean 'head.de.dim'?)",
    "epochs=many": "epochs: 'many' should be a valid integer",
    "head.clf.temperature=0": "head.clf.temperature: '0' should be greater than 0",
    "optim.schedule=cosin": "optim.schedule: 'cosin' should be 'cosine', 'linear' or 'constant'",
    "nonsense": "nonsense: expected KEY=VALUE",
}
CODE = "__import__('pathlib').Path('executed').touch()"
EXPRESSIONS = {
    "bce+ova(ds)": "column 5: 'ova' takes binary losses (each label on its own), but 'ds' is a multi-class loss",
    "ds+bce+ds": "column 8 of 'ds+bce+ds': 'ds' appears twice (use one term per loss",
    "ds+": "column 4 of 'ds+': missing term after '+'",
    "ds+bcee": "column 4: unknown loss 'bcee' (did you mean 'bce'?)",
    CODE: f'column 1 of "{CODE}": ',
    f"ds(temperature={CODE})": "column 16 of ",
}


@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 3), (4, 5)])
def test_all_mistakes_are_told_at_once_and_nothing_runs(call: Call, desk: Path, first: int, second: int) -> None:
    (desk / "needy.py").write_text(NEEDY)
    names = list(EXPRESSIONS)
    losses = {"loss.de": names[first], "loss.clf": names[second]}
    given = [*WORDS, *(f"{key}={expression}" for key, expression in losses.items())]
    code, out, err = call("run", "plugin=needy.py", *given, "--out", "run")
    assert (code, out) == (2, "")
    expected = [*WORDS.values(), *(f"{key}: {EXPRESSIONS[expression]}" for key, expression in losses.items())]
    lines = err.splitlines()
    assert len(lines) == len(expected), err
    for message in expected:
        assert sum(line.startswith(f"error: {message}") for line in lines) == 1, (message, err)
    assert {path.name for path in desk.iterdir()} <= {"needy.py", "__pycache__"}


def test_code_in_a_recipe_file_is_text(call: Call, desk: Path) -> None:
    (desk / "mine.yaml").write_text(f'epochs: "{CODE}"\nloss: {{de: "{CODE}"}}\nencoder: {{name: "{CODE}"}}\n')
    code, out, err = call("run", "recipe=./mine.yaml", "--out", "run")
    assert (code, out) == (2, "")
    assert [line.split(": ")[1:3] for line in err.splitlines()] == [
        ["mine.yaml:1:1", "epochs"],
        ["mine.yaml:3:11", "encoder.name"],
        ["mine.yaml:2:8", "loss.de"],
    ]
    assert [path.name for path in desk.iterdir()] == ["mine.yaml"]


# 45

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "mine.yaml: no such file"),
        ("epochs: 3\nloss: {de: ds\n", "mine.yaml:3:1: malformed YAML: "),
        ("epochs: 3\npool: {beta: 3]\n", "mine.yaml:2:15: malformed YAML: "),
        ("epochs: 3\n\x00\n", "mine.yaml: malformed YAML: "),
        (BOMB, "mine.yaml:2:10: aliases (*name) are not allowed in a recipe"),
        ("epochs: " + "{a: " * 50, "mine.yaml:1:85: nested deeper than 20 levels"),
        ("epochs: 3\n" + "#" * 1_000_000, "mine.yaml: larger than 1,000,000 bytes; not a recipe"),
    ],
    ids=["missing", "unclosed", "mismatched", "control character", "aliases", "deep", "large"],
)
@pytest.mark.parametrize("parent", [False, True], ids=["recipe", "base of a recipe"])
def test_a_bad_recipe_file_is_told_with_its_place(
    call: Call, desk: Path, text: str | None, message: str, parent: bool
) -> None:
    if text is not None:
        (desk / "mine.yaml").write_text(text)
    (desk / "child.yaml").write_text("base: ./mine.yaml\n")
    code, out, err = call("run", f"recipe=./{'child' if parent else 'mine'}.yaml", "--out", "run")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == 1
    assert not (desk / "run").exists()
