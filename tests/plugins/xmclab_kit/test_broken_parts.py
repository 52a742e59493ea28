"""Parts that break a law, and the law that says so: files of `broken/` are plugins whose parts are named after laws."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from xmclab.host.registry import Registry
from xmclab_kit import examine, laws_of
from xmclab_kit.contracts import MODULES

BROKEN = Path(__file__).parent / "broken"


@cache
def registry(kind: str) -> Registry:
    return Registry([], []).with_file(BROKEN / f"{MODULES[kind]}.py")


def law_of(name: str) -> str:
    return re.split("__|-", name)[0]


EVERY = [(kind, name) for kind in MODULES for name in registry(kind).names(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda value: value)
def test_exactly_the_law_that_is_broken_says_so(kind: str, name: str) -> None:
    verdicts = examine(registry(kind), kind, name)
    violations = [verdict.violation for verdict in verdicts if verdict.violation]
    assert [violation.law.name for violation in violations] == [law_of(name)], "\n".join(map(str, violations))
    (violation,) = violations
    assert violation.seen
    assert violation.example or violation.law.examples is None or "raised" in violation.seen


@pytest.mark.parametrize("kind", MODULES)
def test_every_law_has_a_part_that_breaks_it(kind: str) -> None:
    assert {law.name for law in laws_of(kind)} == {law_of(name) for name in registry(kind).names(kind)}
