"""Findings as a table of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from xmclab.system.console import Console, plain
from xmclab_doctor.findings import Area, Finding, Status

MARKS: dict[Status, str] = {
    "ok": "[green]ok[/green]     ",
    "note": "[yellow]note[/yellow]   ",
    "problem": "[red]problem[/red]",
}
TITLES: dict[Area, str] = {
    "software": "Software",
    "hardware": "Hardware",
    "optional": "Optional packages",
    "surroundings": "Surroundings",
    "run": "This run",
}
WIDTH, INDENT = 80, " " * 9


def show(console: Console, findings: Sequence[Finding]) -> None:
    """A block per area, a line per finding; below those that are not fine, what it means and what to type."""
    for area, title in TITLES.items():
        if found := [finding for finding in findings if finding.area == area]:
            console.print(f"[bold]{title}[/bold]", soft_wrap=True)
            for finding in found:
                _show(console, finding)
            console.print()
    counts = {status: sum(finding.status == status for finding in findings) for status in MARKS}
    problems, notes = (f"{counts[s]} {s}{'s' * (counts[s] != 1)}" for s in ("problem", "note"))
    console.print(f"{problems}, {notes}", soft_wrap=True)


def _show(console: Console, finding: Finding) -> None:
    first, *rest = _wrapped(f"{finding.name}: {finding.what}")
    console.print(f"{MARKS[finding.status]}  {plain(first)}", soft_wrap=True)
    for line in rest:
        console.print(f"{INDENT}{plain(line)}", soft_wrap=True)
    for line in _wrapped(finding.why) if finding.why else ():
        console.print(f"{INDENT}[dim]{plain(line)}[/dim]", soft_wrap=True)
    if finding.fix:  # to be copied: never wrapped
        console.print(f"{INDENT}-> {plain(finding.fix)}", soft_wrap=True)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - len(INDENT), break_long_words=False, break_on_hyphens=False)
