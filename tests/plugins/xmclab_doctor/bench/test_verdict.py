"""Goals met, missed and not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmclab_doctor.bench.equality import Check
from xmclab_doctor.bench.rows import Measured
from xmclab_doctor.bench.verdict import of_roof, verdict
from xmclab_doctor.bench.waits import Waits

GOOD = Measured("titles", "default", 100.0, 60.0, 0.6, {"plan wait": 0.001}, 650, 10, 10, 5)
EQUAL, OTHER = Check("a", 0.0, 1.0, True), Check("b", 2.0, 1.0, False)
CARD = "NVIDIA A100-SXM4-80GB"


def met(checks: list[Check], waits: Waits, *rows: Measured, card: str = CARD) -> dict[str, bool | None]:
    return {goal.name: goal.met for goal in verdict(card, checks, waits, rows)}


def test_a_card_that_keeps_every_promise() -> None:
    found = met([EQUAL], Waits(1, {}), GOOD)
    assert len(found) == 5
    assert all(found.values())


@pytest.mark.parametrize(
    ("goal", "checks", "waits", "row"),
    [
        ("comparisons that fail", [EQUAL, OTHER], Waits(1, {}), GOOD),
        ("waits of a step", [EQUAL], Waits(2, {}), GOOD),
        ("launches of a step", [EQUAL], Waits(1, {}), replace(GOOD, launches=701)),
        ("share of waiting for the plan", [EQUAL], Waits(1, {}), replace(GOOD, shares={"plan wait": 0.02})),
        ("share of the roof: titles", [EQUAL], Waits(1, {}), replace(GOOD, fraction=0.54)),
    ],
)
def test_each_promise_can_be_broken(goal: str, checks: list[Check], waits: Waits, row: Measured) -> None:
    assert [name for name, value in met(checks, waits, row).items() if not value] == [goal]


def test_what_was_not_measured_is_neither() -> None:
    found = met([EQUAL], Waits(None, {}), Measured("titles", "default", skipped="out of memory"))
    assert list(found.values()) == [True, None, None, None, None]
    assert met([EQUAL], Waits(None, {}), GOOD, card="")["share of the roof: titles"] is None


@pytest.mark.parametrize(("ms", "found"), [(90.0, True), (92.0, False), (None, None)])
def test_kernels_stay_where_a_step_is_faster_with_them(ms: float | None, found: bool | None) -> None:
    fused = replace(GOOD, variant="kernels=triton", ms=ms, skipped="" if ms else "out of memory")
    assert met([EQUAL], Waits(1, {}), GOOD, fused)["times as fast with kernels=triton: titles"] is found


@pytest.mark.parametrize(
    ("card", "share"),
    [
        (CARD, 0.55),
        ("NVIDIA GeForce RTX 4090", 0.55),
        ("NVIDIA L4", 0.6),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 PCIe", 0.45),
        ("Tesla V100-SXM2-32GB", 0.45),
        ("", None),
    ],
)
def test_cards_are_known_by_their_names(card: str, share: float | None) -> None:
    assert of_roof(card) == share
