"""`xmclab bench` and `xmclab report`: comparisons, run or only shown. `xmclab synthetic`: data of any size."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import Json, note, print_files, print_json, wide_console
from xmclab.errors import ConfigError, Problem
from xmclab.system.terminal import printable

if TYPE_CHECKING:
    from xmclab.host import Registry
    from xmclab_bench.bench import Tuning
    from xmclab_bench.document import Document
    from xmclab_bench.spec import Spec

TERMINATED = 143
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace another comparison in the output folder.")]


def bench(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="A named spec (xmclab bench --list), or a YAML file.")
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Overrides, such as data=tiny epochs=2 seed=0,1 budget=time."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Number of parallel runs.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder of the report.")] = None,
    cells: Annotated[Path, typer.Option("--cells", metavar="DIR", help="Folder of cached runs.")] = Path("runs/cells"),
    list_specs: Annotated[bool, typer.Option("--list", help="List the named specs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells; run nothing.")] = False,
    trials: Annotated[
        int, typer.Option("--tune", metavar="N", min=0, help="Random trials of every row on validation queries first.")
    ] = 0,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="With --tune: also show the rows with the settings of the spec.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare: train every cell of a spec, test the differences, write tables and a page."""
    from xmclab.host import default_registry
    from xmclab_bench.spec import load_spec, named_specs
    from xmclab_bench.write import refuse_another

    if list_specs:
        print_files(named_specs(), as_json)
        return
    if not spec:
        raise ConfigError(Problem("", "no spec given", "name a spec (xmclab bench --list) or a YAML file"))
    declared = load_spec(spec, overrides or [])
    for text in declared.notes:
        note(text)
    declared = replace(declared, tune=bool(trials))
    registry = default_registry()
    if dry_run:
        _list_cells(declared, registry)
    else:
        folder = out or Path("runs") / f"bench-{declared.name}"
        if not overwrite:
            refuse_another(folder, declared.fingerprint)  # before anything trains
        tuning = _tuning(trials, folder, shipped)
        _run(declared, registry, jobs, folder, cells, overwrite, as_json, tuning)


def _list_cells(spec: Spec, registry: Registry) -> None:
    from xmclab.data import open_data
    from xmclab_bench.predictions import scored
    from xmclab_bench.spec import resolve_cells

    found, refused = resolve_cells(replace(spec, tuned={}) if spec.tune else spec, registry)
    if spec.tune:
        note("each row is tuned first; what is chosen for it comes on top")
    for config in {config.data_key(): config for _, config in found}.values():
        open_data(config)  # reports missing data now
    for each in scored(spec.predictions, [config for _, config in found]):
        note(f"beside them: {each.name}, predictions in {each.file}")
    for cell, _ in found:
        line = f"{cell.row}{cell.column and ', ' + cell.column}, seed {cell.seed}: {' '.join(cell.overrides)}"
        print(printable(line))
    for refusal in refused:
        note(f"skipped: {refusal.cell.row}, seed {refusal.cell.seed}: {refusal.reason}")


def _run(
    spec: Spec,
    registry: Registry,
    jobs: int,
    out: Path,
    cells: Path,
    overwrite: bool,
    as_json: bool,
    tuning: Tuning | None,
) -> None:
    from xmclab.system.console import Console
    from xmclab_bench.bench import run_bench
    from xmclab_bench.write import write_report

    with ended_by_sigterm():
        result = run_bench(spec, registry, cells, Console(file=sys.stderr), jobs, tuning)
    document = _stamped(result.document)
    _show(document, write_report(document, out, overwrite), as_json)
    if result.failures:
        raise typer.Exit(result.failures[0].exit_code)


def _tuning(trials: int, out: Path, shipped: bool) -> Tuning | None:
    from xmclab_bench.bench import Tuning

    if not trials:
        if shipped:
            raise ConfigError(Problem("--shipped", "has no effect without --tune"))
        return None
    needs_tune()
    from xmclab_bench.study import JOURNAL

    return Tuning(trials, out / JOURNAL, shipped)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM leave the block as an exit does, so that its runs are stopped first."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def needs_tune() -> None:
    """Refuse to tune without the libraries for it."""
    missing = [name for name in ("optuna", "opda", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ConfigError(Problem("tune", f"needs {' and '.join(missing)}", 'pip install "xmclab[tune]"'))


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, finished or still training; or one document.json or its folder."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Output folder; default: report/, or the folder of the document."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="A,B", help="Metrics to show; default: P and PSP.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Show runs side by side: the same tables and page as a bench; runs that differ only in their seed share a row.

    Given a document.json that a bench or report wrote, only makes its page, report.html.
    """
    from xmclab_bench.document import document_at, read_document
    from xmclab_bench.report import compare_folders
    from xmclab_bench.write import write_page, write_report

    files = [file for source in sources if (file := document_at(source)) is not None]
    if not files:
        document = _stamped(compare_folders(sources, metrics.split(",") if metrics else None))
        _show(document, write_report(document, out or Path("report"), overwrite), as_json)
        return
    if len(sources) > 1:
        raise ConfigError(
            Problem(str(files[0]), "a document cannot be combined with others", "give one document, or run folders")
        )
    if metrics is not None:
        raise ConfigError(
            Problem("--metrics", "a document has its own metrics", "drop the option, or give run folders")
        )
    document = read_document(files[0])
    _show(document, write_page(document, out or files[0].parent, overwrite), as_json)


def _stamped(document: Document) -> Document:
    """The document with the command that was typed, and the date."""
    command = shlex.join(["xmclab", *sys.argv[1:]])
    return {**document, "command": command, "date": datetime.now(UTC).isoformat(timespec="seconds")}


def _show(document: Document, page: Path, as_json: bool) -> None:
    from xmclab_bench.tables import print_document

    if as_json:
        print_json(document)
    else:
        print_document(wide_console(), document)
        print(printable(f"report: {page}"))


def synthetic(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write, new or empty.", show_default=False)],
    train: Annotated[int, typer.Option(min=1, help="Training queries.")] = 10_000,
    test: Annotated[int, typer.Option(min=1, help="Test queries.")] = 1_000,
    labels: Annotated[int, typer.Option(min=1, help="Labels.")] = 1_000,
    topics: Annotated[int, typer.Option(min=0, help="Groups of labels; 0: about the root of the labels.")] = 0,
    labels_per_query: Annotated[float, typer.Option(min=1.0, max=8.0, help="On average, before duplicates.")] = 3.0,
    words: Annotated[int, typer.Option(min=1, help="Words per query.")] = 8,
    exponent: Annotated[float, typer.Option(min=0.0, max=5.0, help="Exponent of the label frequencies (Zipf).")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Make up a data set of any size: xmclab synthetic big --train 2000000 --labels 500000"""
    from xmclab.system.files import new_folder
    from xmclab_bench.synthetic import Recipe, make_synthetic

    with new_folder(out) as folder:
        make_synthetic(folder, Recipe(train, test, labels, topics, labels_per_query, words, exponent, seed))
    sizes = {"training_queries": train, "test_queries": test, "labels": labels}
    if as_json:
        print_json({"out": str(out), "sizes": sizes})
    else:
        print(f"{out}: {train} training queries, {test} test queries, {labels} labels")
