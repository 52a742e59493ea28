"""A trainer that trains nothing."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Puts a trainer in place that only notes what it is called with, and prints."""
    import xmclab.runs.run

    calls: list[tuple[Any, ...]] = []

    def run(config: Any, out: Path | None, console: Any, **how: Any) -> Any:
        calls.append((config, out))
        print("a part that prints")
        return types.SimpleNamespace(document={"metrics": {"de": {"P@1": 50.0}}})

    monkeypatch.setattr(xmclab.runs.run, "run", run)
    monkeypatch.setattr(xmclab.runs.run, "print_result", lambda console, result: console.print("the table"))
    return calls
