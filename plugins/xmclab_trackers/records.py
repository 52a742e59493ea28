"""Records as named numbers, and imports of optional packages."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from xmclab.errors import PluginError, Problem


def numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a record under names such as `step/loss`, `step/terms/de/ds/q2l`, `eval/metrics/de/P@1`.

    Those of validation queries are apart: `validation/metrics/de/P@1`.
    """
    group = "validation" if record.get("split") == "validation" else record["event"]
    for name, value in leaves(record, "/"):
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            yield f"{group}/{name}", value


def leaves(tree: Mapping[str, Any], separator: str = ".") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}{separator}{below}", leaf) for below, leaf in leaves(value, separator))
        else:
            yield name, value


def installed(module: str, extra: str) -> Any:
    """An optional module, or an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f'pip install "xmclab[{extra}]"'
        raise PluginError(Problem(f"tracker {extra}", f"{module} cannot be imported: {error}", hint)) from error
