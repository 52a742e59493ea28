"""`xmclab bench` and `xmclab report`: comparisons, run or only shown."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from xmclab.cli.common import Json, note, print_json

TERMINATED = 143
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the report is written.")]


def bench(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="A named spec (xmclab bench --list), or a YAML file.")
    ] = "",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Such as data=tiny epochs=2 seed=0,1 budget=time.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at the same time.")] = 1,
    out: Out = None,
    cells: Annotated[
        Path, typer.Option("--cells", metavar="DIR", help="Where the runs are kept and found again.")
    ] = Path("runs/cells"),
    list_specs: Annotated[bool, typer.Option("--list", help="List the named specs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells; run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Compare: train every cell of a spec, test the differences, write tables and a page."""
    from rich.console import Console

    from xmclab.bench.bench import run_bench
    from xmclab.bench.spec import load_spec, named_specs, resolve_cells
    from xmclab.cli import show
    from xmclab.data import open_data
    from xmclab.errors import ConfigError, Problem
    from xmclab.host.registry import default_registry
    from xmclab.report.files import write_report
    from xmclab.report.tables import print_document

    if list_specs:
        rows = show.spec_rows(named_specs())
        print_json(rows) if as_json else show.print_recipes(rows)
        return
    if not spec:
        raise ConfigError(Problem("", "which comparison?", "name a spec (xmclab bench --list) or a YAML file"))
    declared = load_spec(spec, overrides or [])
    for text in declared.notes:
        note(text)
    registry = default_registry()
    if dry_run:
        found, refused = resolve_cells(declared, registry)
        for config in {config.data_key(): config for _, config in found}.values():
            open_data(config)  # data that is missing is reported now
        for cell, _ in found:
            print(f"{cell.row}{cell.column and ', ' + cell.column}, seed {cell.seed}: {' '.join(cell.overrides)}")
        for refusal in refused:
            note(f"left out: {refusal.cell.row}, seed {refusal.cell.seed}: {refusal.reason}")
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # not at once: its runs are ended with it
    try:
        result = run_bench(declared, registry, cells, Console(file=sys.stderr), jobs)
    finally:
        signal.signal(signal.SIGTERM, before)
    paths = write_report(result.document, out or Path("runs") / f"bench-{declared.name}")
    if as_json:
        print_json(result.document)
    else:
        print_document(show.wide_console(), result.document)
        print(f"report: {paths[0]}")
    if result.failures:
        raise typer.Exit(result.failures[0].exit_code)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or training.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the report is written.")] = Path("report"),
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="A,B", help="Which metrics.")
    ] = "P@1,P@3,P@5,PSP@1,PSP@3,PSP@5",
    as_json: Json = False,
) -> None:
    """Show runs beside each other: the same tables and page as a bench; runs that differ in their seed share a row."""
    from xmclab.cli import show
    from xmclab.report.files import write_report
    from xmclab.report.folders import compare_folders
    from xmclab.report.tables import print_document

    document = compare_folders(runs, metrics.split(","))
    paths = write_report(document, out)
    if as_json:
        print_json(document)
    else:
        print_document(show.wide_console(), document)
        print(f"report: {paths[0]}")
