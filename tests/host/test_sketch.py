"""The options that the source of a part declares are those that it has."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from xmclab.api import Loss, option
from xmclab.host.hookspecs import KINDS
from xmclab.host.options import options_of
from xmclab.host.registry import default_registry
from xmclab.host.sketch import Sketch, sketch

MODULE = """
import dataclasses
import typing
from typing import Annotated, ClassVar, Literal

from elsewhere import Base
from xmclab.api import Side, Sampler, option

Speed = Literal["fast", "slow"]


class Plain:
    ignored: int = 1


@dataclasses.dataclass(eq=False)
class Part(Plain, Base, Sampler):
    rate: float | None = option(-0.5, "a rate")
    speed: Speed = "fast"
    side: Side | typing.Literal[1] = 1
    flag: bool = dataclasses.field(default=True)
    batch_size: int = 7
    constant: ClassVar[int] = 3
    _hidden: int = 0
    made: int = dataclasses.field(init=False, default=0)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_installed_part_is_read_as_it_is(kind: str) -> None:
    registry = default_registry()
    names = [name for name in registry.names(kind) if not name.startswith("pml.")]  # which are made on demand
    for name in names:
        cls, read = registry.get(kind, name), sketch(registry.target(kind, name))
        real = {option.name: Sketch.of(option) for option in options_of(cls).values()}
        assert {option: of.words for option, of in read.items()} == {option: of.words for option, of in real.items()}
        assert all(of.number in ("", real[option].number) for option, of in read.items()), name


def test_fields_of_every_form_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part_to_sketch.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    read = sketch("part_to_sketch:Part")
    assert {name: (of.words, of.number) for name, of in read.items()} == {
        "batch_size": ((), "7"),
        "rate": (("none",), "-0.5"),
        "speed": (("fast", "slow"), ""),
        "side": (("query", "label", "1"), "1"),
        "flag": (("false", "true"), ""),
    }
    assert set(sys.modules) == before, "nothing is imported"


@pytest.mark.parametrize("target", ["no_such_module:Part", "xmclab.no_such:Part", "xmclab.api:NoSuchPart", "sys:Part"])
def test_what_cannot_be_read_has_no_options(target: str) -> None:
    assert sketch(target) == {}


def test_a_class_is_asked_itself() -> None:
    @dataclass
    class Mine(Loss):
        way: Literal["a", "b"] = option("a", "a way")

    assert sketch(Mine) == {"temperature": Sketch(("none",), ""), "way": Sketch(("a", "b"), "")}
