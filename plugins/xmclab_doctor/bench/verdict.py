"""What was measured beside what was promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xmclab_doctor.bench.equality import Check
from xmclab_doctor.bench.rows import COMPILED, DEFAULT, FUSED, Measured
from xmclab_doctor.bench.waits import ALLOWED, Waits

LAUNCHES, PLAN_WAIT = 700, 0.01  # of a step; share of its time
WORTH_HAVING = 1.1  # times as fast: what a kernel must make a step
OF_ROOF = {"A100": 0.55, "4090": 0.55, "L4": 0.60, "H100": 0.45, "V100": 0.45}  # by what names of cards contain


@dataclass(frozen=True)
class Goal:
    """A promise; `met` is None if it was not measured, or if nothing was promised for this device."""

    name: str
    value: float | None
    bound: float | None
    met: bool | None
    detail: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def verdict(card: str, checks: Sequence[Check], waits: Waits, rows: Sequence[Measured]) -> Iterator[Goal]:
    """A goal for everything together, then one for the roof of every row.

    Args:
        card: its name; empty on a CPU.
    """
    failed = [check.name for check in checks if check.passed is False]
    yield Goal("comparisons that fail", float(len(failed)), 0.0, not failed, ", ".join(failed))
    yield at_most("waits of a step", waits.most, ALLOWED, waits.detail)
    usual = [row for row in rows if row.variant == DEFAULT]
    counted = [row.launches for row in usual[:1] if row.launches is not None]  # later rows may go in chunks
    yield at_most("launches of a step", max(counted, default=None), LAUNCHES, "" if counted else "on a card only")
    waited = [row.shares["plan wait"] for row in usual if row.shares]
    yield at_most(
        "share of waiting for the plan",
        max(waited, default=None) if card else None,
        PLAN_WAIT,
        "" if card else "on a card only",
    )
    bound = of_roof(card)
    for row in rows:
        if row.variant in (DEFAULT, COMPILED):
            name = f"share of the roof: {row.name}" + (f", {row.variant}" if row.variant != DEFAULT else "")
            met = None if row.fraction is None or bound is None else row.fraction >= bound
            detail = row.skipped or ("" if bound else "no goal for this device")
            yield Goal(name, row.fraction, bound, met, detail)
        if row.variant == FUSED:
            plain = next((each.ms for each in usual if each.name == row.name), None)
            faster = plain / row.ms if plain and row.ms else None
            met = None if faster is None else faster >= WORTH_HAVING
            yield Goal(f"times as fast with {FUSED}: {row.name}", faster, WORTH_HAVING, met, row.skipped)


def at_most(name: str, value: float | None, bound: float, detail: str) -> Goal:
    return Goal(name, value, bound, None if value is None else value <= bound, detail)


def of_roof(card: str) -> float | None:
    """The share of the roof that is promised for a card; of L4 and L40, only the first."""
    words = card.upper().replace("-", " ").split()
    return next((share for name, share in OF_ROOF.items() if name in words), None)
