"""Compare the paper's claims with the committed results.

    python benchmarks/results/claims.py

Writes `claims.md` from the documents of the comparisons, and copies it and their tables into docs/comparisons.md.

A claim says that one row is better or worse than another in a metric. It `held` if the 95 % interval of the difference
lies on its side and p < 0.05; it is `opposite` if the interval lies on the other side, and `open` otherwise.
The p-values are taken from the documents and not corrected for the number of claims.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "comparisons.md"
HEADINGS = ("claim", "where", "search", "metric", "difference", "95 % interval", "p", "verdict")


@dataclass(frozen=True)
class Claim:
    """`better` has a higher (or lower) metric than `than`: rows of a search, or searches of a row."""

    says: str
    comparisons: tuple[str, ...]
    better: str
    than: str
    metrics: dict[str, int]  # 1: higher, -1: lower
    searches: tuple[str, ...] = ("de", "clf", "de+clf")
    row: str = ""  # searches to compare


P_AND_PSP = {"P@1": 1, "P@5": 1, "PSP@1": 1, "PSP@5": 1}
P_FOR_PSP = {"P@1": 1, "P@5": 1, "PSP@1": -1, "PSP@5": -1}
HEADS = ("de", "clf", "de+clf")
CLAIMS = (
    Claim("PSL > OvA", ("reductions", "reductions-genes"), "PSL", "OvA", P_AND_PSP),
    Claim("PSL > POL at equal pool", ("reductions", "reductions-genes"), "PSL", "POL", P_AND_PSP),
    Claim("PSL > PAL-N", ("reductions", "reductions-genes"), "PSL", "PAL-N", P_AND_PSP),
    Claim("DS > SC", ("losses",), "DS; DS", "SC; SC", P_AND_PSP),
    Claim("DS > SC (DePSL)", ("symmetric",), "DS, both directions", "SC, both directions", P_AND_PSP, ("de",)),
    Claim("DS+BCE lifts P, costs PSP", ("losses",), "DS; DS+BCE", "DS; DS", P_FOR_PSP, ("clf", "de+clf")),
    Claim("both directions > one", ("symmetric",), "DS, both directions", "DS, query to label", P_AND_PSP, ("de",)),
    Claim(
        "both directions > one",
        ("symmetric",),
        "classifier, both directions",
        "classifier, query to label",
        P_AND_PSP,
        ("clf",),
    ),
    Claim("hard negatives lift P, cost PSP", ("hard_negatives",), "pool.eta=6", "pool.eta=0", P_FOR_PSP),
    Claim("mined negatives lift P", ("negatives",), "mined every epoch", "none", P_AND_PSP, ("de+clf",)),
    Claim("refreshing them lifts P", ("negatives",), "mined every epoch", "mined once", P_AND_PSP, ("de+clf",)),
    Claim("cluster batches > random", ("batches",), "cluster", "random", P_AND_PSP, HEADS),
    Claim("de+clf > de", ("losses",), "de+clf", "de", P_AND_PSP, row="DS; DS+BCE"),
    Claim("de+clf > clf", ("losses",), "de+clf", "clf", P_AND_PSP, row="DS; DS+BCE"),
)


def documents() -> dict[str, Any]:
    """The documents of the comparisons next to this file."""
    return {file.parent.name: json.loads(file.read_text("utf-8")) for file in sorted(HERE.glob("*/document.json"))}


def lines(claim: Claim, found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """A line of the table for every comparison, search and metric."""
    for name in claim.comparisons:
        if name not in found:
            continue
        for search in ("",) if claim.row else claim.searches:
            tests = _tests(found[name], claim, search)
            for metric, side in claim.metrics.items():
                value, low, high, p = _less(tests[metric], claim)
                said = _verdict(side, low, high, p)
                interval = f"{low:+.2f} to {high:+.2f}"
                chance = "< 0.001" if p < 0.001 else f"{p:.3f}"
                yield claim.says, name, search or claim.row, metric, f"{value:+.2f}", interval, chance, said


def _tests(document: dict[str, Any], claim: Claim, search: str) -> dict[str, dict[str, Any]]:
    """The tests of a claim's two sides, by metric."""
    pool = document["heads"] if claim.row else document["tests"]
    key, value = ("name", claim.row) if claim.row else ("search", search)
    pair = {claim.better, claim.than}
    return {test["metric"]: test for test in pool if test[key] == value and {test["a"], test["b"]} == pair}


def _less(test: dict[str, Any], claim: Claim) -> tuple[float, float, float, float]:
    """(difference, low, high, p) of the better one minus the other."""
    if test["a"] == claim.better:
        return test["value"], test["low"], test["high"], test["p"]
    return -test["value"], -test["high"], -test["low"], test["p"]


def _verdict(side: int, low: float, high: float, p: float) -> str:
    if p >= 0.05 or low <= 0 <= high:
        return "open"
    return "held" if (low > 0) == (side > 0) else "opposite"


def table(found: dict[str, Any]) -> str:
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(line for claim in CLAIMS for line in lines(claim, found))]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def filled(page: str) -> str:
    """The page with the current tables between its marks, `<!-- losses -->` and `<!-- /losses -->`."""

    def tables(mark: re.Match[str]) -> str:
        name = mark[1]
        text = (HERE / (f"{name}.md" if name == "claims" else f"{name}/table.md")).read_text("utf-8")
        lines = "\n".join(line for line in text.splitlines() if line.startswith("|"))
        return f"<!-- {name} -->\n{lines}\n<!-- /{name} -->"

    return re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", tables, page, flags=re.DOTALL)


def main() -> None:
    (HERE / "claims.md").write_text(table(documents()), encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
