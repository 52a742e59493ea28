"""Ceilings of what a step of real size asks of a GPU. Lower them whenever a change lowers what is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Ceiling(NamedTuple):
    """Numbers of a step."""

    launches: int
    waits: int = 1  # for the numbers of the step before
    pinned: int = 1  # copies to the device from pinned memory
    pageable: int = 0  # other copies to the device, in the step or while its batch is prepared


GOAL = 700  # launches of the first
CEILINGS = {"MiniLM titles": Ceiling(launches=1550), "small all labels": Ceiling(launches=600)}
Ran = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def ran(in_process: Callable[..., list[dict[str, Any]]]) -> Ran:
    """What a preset came to."""
    names = [*CEILINGS, "small titles"]
    return lambda name: next(each for each in in_process("presets", "presets", *names) if each["preset"] == name)


def most(counts: dict[str, int]) -> str:
    """The lines that ask most, for a failure's message."""
    return "\n".join(f"{number:6} {line}" for line, number in [*counts.items()][:25])


@pytest.mark.parametrize("preset", CEILINGS)
def test_a_step_asks_no_more_than_before(ran: Ran, preset: str) -> None:
    found, ceiling = ran(preset), CEILINGS[preset]
    assert sum(found["launches"].values()) <= ceiling.launches, most(found["launches"])
    assert sum(found["waits"].values()) <= ceiling.waits, most(found["waits"])
    assert sum(found["pinned_copies"].values()) <= ceiling.pinned, most(found["pinned_copies"])
    pageable = Counter(found["copies"]) + Counter(found["prepared_copies"])
    assert pageable.total() <= ceiling.pageable, most(pageable)


@pytest.mark.parametrize("preset", CEILINGS)
def test_no_ceiling_is_far_above_what_is_asked(ran: Ran, preset: str) -> None:
    """A step that launches half as much must lower its ceiling."""
    launches = sum(ran(preset)["launches"].values())
    assert max(launches, GOAL) > 0.5 * CEILINGS[preset].launches, f"{launches} launches: lower the ceiling"


@pytest.mark.parametrize("preset", ["MiniLM titles", "small titles", "small all labels"])
def test_the_memory_that_plan_predicts_is_what_the_ledger_counts(ran: Ran, preset: str) -> None:
    found = ran(preset)
    assert found["predicted"] == pytest.approx(found["peak"], rel=0.15), found["at_peak"]
