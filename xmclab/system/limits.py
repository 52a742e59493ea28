"""How much one file may make a command hold or do: every limit, with its reason, and how to change it.

`XMCLAB_LIMITS=line=64M,labels=200M` changes limits for a command and all processes that it starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from xmclab.errors import ConfigError, Problem, did_you_mean

VARIABLE = "XMCLAB_LIMITS"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
VALUE = re.compile(r"(\d{1,15})([KMG]?)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """The largest number of something that is accepted."""

    default: int
    unit: str
    of: str  # what it limits
    why: str


LIMITS = {
    "line": Limit(16_000_000, "bytes", "a line, or a row of a table", "a line is held in memory, several times over"),
    "text": Limit(1_000_000, "characters", "a text; the rest is cut off", "no encoder reads more"),
    "inflation": Limit(
        200, "times its size", "what a `.gz`, `.npz` or Parquet file unpacks to", "text packs 3 to 20 times"
    ),
    "rows": Limit(100_000_000, "rows", "the rows that a header or matrix announces", "memory is taken for each"),
    "labels": Limit(100_000_000, "labels", "the labels that a header or matrix announces", "memory is taken for each"),
    "document": Limit(32_000_000, "bytes", "a JSON file of a run folder, export or report", "it is read as a whole"),
    "records": Limit(1_000_000_000, "bytes", "`metrics.jsonl`, or a vocabulary", "all of it is held in memory"),
}
NOT_COUNTED = 64_000_000  # bytes that anything may unpack to


class BeyondLimit(ValueError):
    """A file asks for more than a limit; says how much, and how to allow it."""

    def __init__(self, message: str, hint: str) -> None:
        self.message, self.hint = message, hint
        super().__init__(f"{message} ({hint})")

    def at(self, where: str) -> Problem:
        """The same as a problem of a place."""
        return Problem(where, self.message, self.hint)


def limit(name: str) -> int:
    """The limit of this name, as the user set it."""
    return _chosen(os.environ.get(VARIABLE, "")).get(name, LIMITS[name].default)


def check(name: str, found: int, what: str) -> None:
    """Raise `BeyondLimit` if `found` exceeds a limit; `what` says who asks for so much, and ends in a verb."""
    if found > limit(name):
        raise BeyondLimit(f"{what} {found:,} {LIMITS[name].unit}; the limit is {limit(name):,}", raised(name, found))


def check_inflation(unpacked: int, packed: int, what: str = "it unpacks to") -> None:
    """Raise `BeyondLimit` if so few bytes unpack to so many."""
    if unpacked > NOT_COUNTED and unpacked > packed * limit("inflation"):
        times = f"{what} {unpacked:,} bytes from {packed:,}; the limit is {limit('inflation'):,} times its size"
        raise BeyondLimit(times, raised("inflation", -(-unpacked // max(packed, 1))))


def raised(name: str, needed: int) -> str:
    """How to allow this much."""
    unit = next(unit for unit in ("G", "M", "K", "") if needed >= UNITS[unit] or not unit)
    return f"{VARIABLE}={name}={-(-needed // UNITS[unit])}{unit} allows it"


@cache
def _chosen(text: str) -> Mapping[str, int]:
    """What the variable says.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    chosen, problems = {}, []
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, value = item.partition("=")
        found = VALUE.fullmatch(value)
        if name not in LIMITS:
            problems.append(Problem(VARIABLE, f"unknown limit {name!r}", did_you_mean(name, LIMITS)))
        elif found is None:
            problems.append(Problem(VARIABLE, f"{name}: {value!r} is not a number", "such as line=64M"))
        else:
            chosen[name] = int(found[1]) * UNITS[found[2].upper()]
    if problems:
        raise ConfigError(*problems)
    return chosen
