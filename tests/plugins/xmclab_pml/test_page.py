"""docs/pml.md has every loss and miner, each reason, and the numbers that were measured."""

from __future__ import annotations

import re
from pathlib import Path

from pytorch_metric_learning import losses

import xmclab_pml
from xmclab_pml.losses import BRIDGES, OfAnchors, OfPairings, OfTriplets
from xmclab_pml.options import default_distance
from xmclab_pml.pairs import MINERS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "pml.md").read_text(encoding="utf-8")


def rows(mark: str) -> list[list[str]]:
    """The cells of the table between two marks, without its head."""
    inside = PAGE.partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in inside.strip().splitlines()][2:]


def test_every_loss_has_its_row() -> None:
    found = {row[0].removeprefix("pml."): row for row in rows("losses")}
    assert list(found) == list(xmclab_pml.LOSSES)
    for name, (_, _, distance, memory, laws) in found.items():
        bridge, theirs = BRIDGES.get(name, OfAnchors), getattr(losses, name)
        assert laws == ", ".join(xmclab_pml.LAWS_NOT_KEPT.get(name, {}))
        assert distance.replace(" ", "_") == ("angle" if bridge.angles else default_distance(theirs))
        assert (memory == "positives × labels") == issubclass(bridge, OfPairings | OfTriplets)


def test_every_refused_loss_has_its_reason() -> None:
    assert {row[0]: row[1] for row in rows("refused")} == {f"pml.{k}": v for k, v in xmclab_pml.REFUSED.items()}


def test_every_miner_is_named() -> None:
    assert all(f"`{name}`" in PAGE for name in MINERS)


def test_the_costs_are_those_measured() -> None:
    results = (ROOT / "benchmarks" / "pml" / "results.md").read_text(encoding="utf-8")
    measured = re.findall(r"^\|.*\|$", results, re.MULTILINE)
    assert len(measured) == 2 + 3 + len(xmclab_pml.LOSSES)
    assert "\n".join(measured) in PAGE
