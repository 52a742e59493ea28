"""Every fault that one process can meet has a test in this folder.

The faults are numbered. A module names its own in its docstring, a number and two spaces before what each means, and
has tests of each: below a comment `# 49`, `# 49, 50` or `# 49-51`, or called `test_49_...`. Some faults have no number.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FAULTS = set(range(1, 55))
WAITING = {10: "several processes", 37: "several processes", 38: "several processes", 46: "xmclab doctor"}
WITHOUT_NUMBERS = {"test_bounds.py", "test_damage.py", "test_hints.py", "test_terminal.py"}
MODULES = {
    path.name: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if path.name != Path(__file__).name
}


def claimed(source: str) -> set[int]:
    """The numbers that a docstring lists."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return {int(number) for number in re.findall(r"^(\d+)  \S", docstring, re.MULTILINE)}


def with_tests(source: str) -> set[int]:
    """The numbers that head a section, or the name of a test."""
    found = {int(number) for number in re.findall(r"^def test_(\d+)_", source, re.MULTILINE)}
    for numbers in re.findall(r"^# (\d+(?:(?:-|, )\d+)*)\b", source, re.MULTILINE):
        for part in numbers.split(", "):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_module_tests_the_faults_that_it_names(name: str) -> None:
    assert bool(claimed(MODULES[name])) == (name not in WITHOUT_NUMBERS)
    assert with_tests(MODULES[name]) == claimed(MODULES[name])


def test_every_fault_has_a_test() -> None:
    covered = set().union(*map(claimed, MODULES.values()))
    assert covered >= FAULTS - WAITING.keys()
    assert covered <= FAULTS
    assert not covered & WAITING.keys(), "no longer waiting"


def test_sections_may_name_several_faults() -> None:
    assert with_tests(
        "# 1-3, 7; and why\n\n# 12 and more\n\n# no number\n\n    # 99 within\n\ndef test_20_x(): ...\n"
    ) == {
        *(1, 2, 3, 7),
        *(12, 20),
    }


def test_the_page_of_promises_names_the_tests_of_every_fault() -> None:
    """Each row links the modules that have the faults which it names."""
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = page.partition("<!-- promises -->")[2].partition("<!-- /promises -->")[0]
    promised: set[int] = set()
    for _, faults, tests in re.findall(r"^\| (.*?) \| ([\d, -]+) \| (.*) \|$", table, re.MULTILINE):
        linked = [claimed(MODULES[name]) for name in re.findall(r"/(test_\w+\.py)\)", tests)]
        numbers = with_tests(f"# {faults}\n")
        assert numbers <= set().union(*linked), faults
        assert all(numbers & found for found in linked), f"{faults}: a module has none of them"
        promised |= numbers
    assert promised == set().union(*map(claimed, MODULES.values()))
