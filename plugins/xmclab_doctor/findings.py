"""What the doctor finds: values, before anyone prints them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from xmclab.errors import PluginError

Status = Literal["ok", "note", "problem"]
Area = Literal["software", "hardware", "optional", "surroundings", "run"]
SICK = PluginError.exit_code  # of the command, if there is a problem


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    `problem`: a run fails, or a card that is here is of no use. `note`: runs work, but something could be better.
    """

    area: Area
    name: str
    status: Status
    what: str
    why: str = ""  # what it means for a run, or what the fix gains
    fix: str = ""  # a command or setting

    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        return dataclasses.asdict(self)


def ok(area: Area, name: str, what: str, why: str = "") -> Finding:
    return Finding(area, name, "ok", what, why)


def note(area: Area, name: str, what: str, why: str = "", fix: str = "") -> Finding:
    return Finding(area, name, "note", what, why, fix)


def problem(area: Area, name: str, what: str, why: str = "", fix: str = "") -> Finding:
    return Finding(area, name, "problem", what, why, fix)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 unless there is a problem."""
    return SICK if any(finding.status == "problem" for finding in findings) else 0
