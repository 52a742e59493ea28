"""Options of parts: text means what was typed, and what does not fit is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from xmclab.errors import ConfigError, PluginError
from xmclab.host.options import make_part, options_of
from xmclab.options import Span, linear, log, one_of, option


@dataclass
class Sample:
    """One option of every type."""

    count: int = option(1, "a number", ge=1, le=100)
    rate: float = option(0.5, "a share", gt=0, lt=1)
    flag: bool = False
    word: str = "a"
    maybe: float | None = option(None, "perhaps", gt=0)
    mode: Literal["fast", "none"] = "fast"
    level: Literal[1, 2] = 1
    steps: tuple[int, ...] = ()
    names: list[str] | None = None
    needed: dataclasses.InitVar[None] = None


@dataclass
class Demanding:
    size: int = option(help="of the thing")

    def __post_init__(self) -> None:
        if self.size == 13:
            raise ValueError("13 brings bad luck")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "012", 12),
        ("count", "7", 7),
        ("rate", "1e-3", 1e-3),
        ("flag", "on", True),
        ("flag", "off", False),
        ("flag", "true", True),
        ("flag", "0", False),
        ("word", "on", "on"),
        ("word", "012", "012"),
        ("word", "none", "none"),
        ("word", "", ""),
        ("maybe", "none", None),
        ("maybe", "null", None),
        ("maybe", "0.25", 0.25),
        ("mode", "none", "none"),
        ("level", "2", 2),
        ("steps", "10,20", (10, 20)),
        ("steps", "[3]", (3,)),
        ("steps", "", ()),
        ("names", "a, b", ["a", "b"]),
        ("names", "none", None),
    ],
)
def test_text_means_what_was_typed(name: str, text: str, value: Any) -> None:
    made = getattr(make_part(Sample, {name: text}, "sample"), name)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("count", "x", "'x' should be a valid integer"),
        ("count", "1.5", "should be a valid integer"),
        ("count", "0", "'0' should be greater than or equal to 1"),
        ("count", "101", "should be less than or equal to 100"),
        ("rate", "1", "should be less than 1"),
        ("rate", "nan", "should be a finite number"),
        ("maybe", "inf", "should be a finite number"),
        ("maybe", "-1", "should be greater than 0"),
        ("flag", "perhaps", "should be a valid boolean"),
        ("mode", "fats", "'fats' should be 'fast' or 'none'"),
        ("level", "3", "should be 1 or 2"),
        ("steps", "1,b", "should be a valid integer"),
        ("cuont", "3", "unknown option 'cuont' (did you mean 'count'?)"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_part(Sample, {name: text}, "sample")
    [problem] = caught.value.problems
    assert problem.where == f"sample.{name}"
    assert reason in str(problem)


def test_an_option_says_what_tuning_tries() -> None:
    @dataclass
    class Tuned:
        rate: float = option(0.5, "a share", search=log(1e-3, 1))
        plain: int = option(3, "a number")

    found = {name: each.search for name, each in options_of(Tuned).items()}
    assert found == {"rate": Span(1e-3, 1, log=True), "plain": None}
    assert str(found["rate"]) == "log(0.001, 1)"
    assert (str(linear(0, 0.5)), str(one_of("a", 1))) == ("linear(0, 0.5)", "one_of(a, 1)")


def test_what_tuning_tries_must_fit_the_option() -> None:
    @dataclass
    class Wide:
        rate: float = option(0.5, "a share", ge=0, search=linear(-1, 1))

    with pytest.raises(PluginError, match="-1"):
        options_of(Wide)
    with pytest.raises(TypeError, match="use log"):
        option(1, search=[1, 2])  # type: ignore[arg-type]


def test_a_default_that_can_change_is_shared_by_nobody() -> None:
    @dataclass
    class Listed:
        names: list[str] = dataclasses.field(default_factory=list)
        size: int = 1

    options_of(Listed)["names"].default.append("mine")
    assert options_of(Listed)["names"].default == []
    assert options_of(Sample) is options_of(Sample), "the others are read once"


def test_the_words_of_an_option_are_what_could_be_typed() -> None:
    found = {name: (each.words, each.number) for name, each in options_of(Sample).items()}
    assert found["mode"] == (("fast", "none"), "")
    assert found["level"] == (("1", "2"), "1")
    assert found["flag"] == (("false", "true"), "")
    assert found["maybe"] == (("none",), "")
    assert found["rate"] == ((), "0.5")


def test_a_part_reports_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_part(Sample, {"count": "x", "rate": 7, "wrod": "b"}, "sample")
    assert len(caught.value.problems) == 3


def test_required_options_and_a_parts_own_checks() -> None:
    with pytest.raises(ConfigError, match=r"thing\.size: must be set \(int\)"):
        make_part(Demanding, {}, "thing")
    with pytest.raises(ConfigError, match="thing: 13 brings bad luck"):
        make_part(Demanding, {"size": 13}, "thing")
    assert make_part(Demanding, {"size": "12"}, "thing").size == 12
