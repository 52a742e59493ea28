"""The report as text."""

from __future__ import annotations

from typing import Any

from xmclab.runs.sizes import size
from xmclab.system.console import Console, plain

MARKS = {True: "[green]yes[/green] ", False: "[red]no[/red]  ", None: "-   "}


def show(console: Console, report: dict[str, Any]) -> None:
    """What was compared, the peaks, the rows, and the verdict."""
    machine = report["machine"]
    console.print(
        f"[bold]{plain(machine.get('card') or machine['isa'])}[/bold], {report['seconds']:.0f} s\n", soft_wrap=True
    )
    console.print("[bold]Equal?[/bold]          largest difference, bound")
    for check in report["equality"]:
        numbers = "" if check["error"] is None else f"{check['error']:.1e}, {check['bound']:.0e}"
        line = f"{MARKS[check['passed']]} {check['name']:<34} {numbers:<18} {check['detail']}"
        _print(console, line)
    _peaks(console, report["peaks"])
    _rows(console, report["rows"])
    console.print("\n[bold]Met?[/bold]")
    for goal in report["verdict"]:
        value = "not measured" if goal["value"] is None else f"{goal['value']:.3g}"
        bound = "" if goal["bound"] is None else f"(goal {goal['bound']:g})"
        detail = goal["detail"] and f"- {goal['detail']}"
        _print(console, f"{MARKS[goal['met']]} {goal['name']}: " + " ".join(filter(None, (value, bound, detail))))


def _peaks(console: Console, peaks: dict[str, Any]) -> None:
    found = [f"{name} {value / 1e12:.3g} TFLOPS" for name, value in peaks["products"].items()]
    found.append(f"memory {peaks['bandwidth'] / 1e9:.0f} GB/s")
    for name in ("pinned", "pageable"):
        if peaks[name] is not None:
            found.append(f"{name} copies {peaks[name] / 1e9:.1f} GB/s")
    found.append(f"a launch {peaks['launch'] * 1e6:.1f} us")
    console.print(f"\n[bold]Peaks:[/bold] {', '.join(found)}")


def _rows(console: Console, rows: list[dict[str, Any]]) -> None:
    console.print("\n[bold]Steps[/bold]                     ms, share of the roof, launches, peak (predicted)")
    for row in rows:
        name = row["name"] + (f", {row['variant']}" if row["variant"] != "default" else "")
        if row["skipped"]:
            _print(console, f"  {name}: skipped, {row['skipped']}")
            continue
        launches = "-" if row["launches"] is None else row["launches"]
        peak = "-" if row["peak_bytes"] is None else size(row["peak_bytes"])
        numbers = f"{row['ms']:.1f}, {row['fraction']:.2f}, {launches}, {peak} ({size(row['predicted_bytes'])})"
        _print(console, f"  {name:<42} {numbers}")


def _print(console: Console, line: str) -> None:
    marks = tuple(MARKS.values())
    start = next((mark for mark in marks if line.startswith(mark)), "")
    console.print(start + plain(line[len(start) :]), soft_wrap=True)
