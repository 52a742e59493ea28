"""Options of a part: annotated dataclass fields with bounds and help."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

BOUNDS = ("gt", "ge", "lt", "le")


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    default_factory: Callable[[], Any] | None = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
) -> Any:
    """Declare an option of a part: `temperature: float = option(0.05, "divides the scores", gt=0)`.

    Overrides are converted to the annotated type and checked against `gt`/`ge`/`lt`/`le`. Use `typing.Literal`
    for a choice. A plain dataclass default works too; it only lacks the help text.
    """
    bounds = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    metadata = {"help": help} | {name: bound for name, bound in bounds.items() if bound is not None}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
