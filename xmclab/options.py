"""Options of a part: annotated dataclass fields with bounds, help, and the values that tuning tries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BOUNDS = ("gt", "ge", "lt", "le")


@dataclass(frozen=True)
class Span:
    """Numbers from `low` to `high`, drawn evenly or, with `log`, evenly in their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"{self}: the first number must be smaller than the second")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: the logarithm needs numbers above 0")

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    def __str__(self) -> str:
        return f"{'log' if self.log else 'linear'}({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class OneOf:
    """Some values, all drawn alike."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ValueError("a choice needs at least two values")

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    def __str__(self) -> str:
        return f"one_of({', '.join(map(str, self.values))})"


def log(low: float, high: float) -> Span:
    """Tuning draws numbers whose logarithm is spread evenly: learning rates, temperatures."""
    return Span(low, high, log=True)


def linear(low: float, high: float) -> Span:
    """Tuning draws numbers that are spread evenly."""
    return Span(low, high)


def one_of(*values: Any) -> OneOf:
    """Tuning draws one of these values."""
    return OneOf(values)


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    default_factory: Callable[[], Any] | None = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    search: Span | OneOf | None = None,
) -> Any:
    """Declare an option of a part: `temperature: float = option(0.05, "divides the scores", gt=0)`.

    Overrides are converted to the annotated type and checked against `gt`/`ge`/`lt`/`le`. Use `typing.Literal`
    for a choice. A plain dataclass default works too; it only lacks the help text. `search` says what `xmclab tune`
    tries: `log(1e-4, 1e-1)`, `linear(0, 0.5)` or `one_of("none", "label")`; without it the option is left as it is.
    """
    bounds = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    metadata: dict[str, Any] = {"help": help} | {name: bound for name, bound in bounds.items() if bound is not None}
    if not isinstance(search, Span | OneOf | None):
        raise TypeError(f"search={search!r}: use log(...), linear(...) or one_of(...)")
    if search is not None:
        metadata["search"] = search
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
