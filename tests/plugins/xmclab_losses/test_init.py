"""The list of losses: found by name, a file each under that name, and no torch for the names alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import xmclab_losses
from xmclab.host.hookspecs import PartRef, part
from xmclab.host.registry import default_registry

FOLDER = Path(xmclab_losses.__file__).parent
FILES = {".".join(file.relative_to(FOLDER).with_suffix("").parts) for file in FOLDER.rglob("*.py")} - {"__init__"}
REFS = xmclab_losses.xmclab_parts()


def misplaced(refs: Sequence[PartRef], files: set[str]) -> Iterator[str]:
    """What breaks the law that a file holds the loss of its own name, and that the hook lists every file."""
    for ref in refs:
        module = str(ref.target).partition(":")[0]
        if module != f"xmclab_losses.{ref.name}":
            yield f"{ref.name} is in {module}: move it to xmclab_losses/{ref.name}.py"
    for file in sorted(files - {ref.name for ref in refs}):
        yield f"xmclab_losses/{file}.py is not listed in xmclab_losses/__init__.py"


def test_every_file_is_listed_and_every_loss_is_in_the_file_of_its_name():
    assert list(misplaced(REFS, FILES)) == []
    assert len({ref.name for ref in REFS}) == len(REFS) == len(FILES)
    for ref in REFS:
        cls = default_registry().get("loss", ref.name)
        assert (cls.__module__, ref.kind) == (f"xmclab_losses.{ref.name}", "loss"), "a file defines its own loss"


@pytest.mark.parametrize(
    ("target", "files", "fault"),
    [
        ("xmclab_losses.poly:Poly", {"poly"}, ""),
        ("xmclab_losses.bce:Poly", set(), "poly is in xmclab_losses.bce: move it to xmclab_losses/poly.py"),
        ("xmclab_poly.poly:Poly", set(), "poly is in xmclab_poly.poly: move it to xmclab_losses/poly.py"),
        ("xmclab_losses.poly:Poly", {"poly", "unlisted"},
         "xmclab_losses/unlisted.py is not listed in xmclab_losses/__init__.py"),
    ],
)  # fmt: skip
def test_the_law_names_what_breaks_it(target, files, fault):
    assert "\n".join(misplaced([part("loss", "poly", target)], files)) == fault


def test_no_other_package_ships_a_loss():
    """Save those of another library, whose names have a dot."""
    ours = [c for c in default_registry().claims if c.kind == "loss" and c.origin.distribution == "xmclab"]
    assert {claim.name for claim in ours if "." not in claim.name} == {ref.name for ref in REFS}
    assert {claim.origin.plugin for claim in ours if "." not in claim.name} == {"losses"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_says_its_formula_and_where_it_comes_from(name):
    docstring = sys.modules[default_registry().get("loss", name).__module__].__doc__
    assert re.findall(r"^(Formula|Where|Use when|Paper):", docstring, re.M) == ["Formula", "Where", "Use when", "Paper"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_has_a_file_of_tests(name):
    assert Path(__file__).with_name(f"test_{name}.py").is_file()


@pytest.mark.parametrize(
    ("name", "kind"), [("ds", "multiclass"), ("supcon", "multiclass"), ("softmax", "multiclass"), ("bce", "binary")]
)
def test_a_loss_is_found_by_its_name(name, kind):
    assert default_registry().get("loss", name).kind == kind


def test_the_list_imports_no_torch():
    code = (
        "import sys, xmclab_losses, xmclab.objectives.expr; assert xmclab_losses.xmclab_parts();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
