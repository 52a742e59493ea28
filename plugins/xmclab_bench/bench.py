"""A bench from spec to document: cells are resolved, run unless cached, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from xmclab.host import Config, Registry, exception_line, resolve
from xmclab_bench.baselines import measured
from xmclab_bench.cells import Keys
from xmclab_bench.document import Baselines, Document, Group, Wanted, compare
from xmclab_bench.predictions import scored
from xmclab_bench.run_folder import read_run
from xmclab_bench.runner import run_jobs
from xmclab_bench.spec import Cell, LeftOut, Spec, resolve_cells
from xmclab_bench.view import Job

# Settings of every cell: its run is compared, not used.
CELL = ("keep_model=false", "baseline=none")


@dataclass(frozen=True)
class Result:
    """What a bench found."""

    document: Document
    failures: Sequence[LeftOut]


@dataclass(frozen=True)
class Tuning:
    """How the rows are tuned before they are compared."""

    trials: int  # of every row
    journal: Path
    shipped: bool = False  # show the rows with the settings of the spec too


def run_bench(
    spec: Spec, registry: Registry, cells: Path, console: Console, at_once: int = 1, tuning: Tuning | None = None
) -> Result:
    """Run and compare the cells of a spec.

    Args:
        cells: the folder of cached runs.
        at_once: processes in parallel.
    """
    fingerprint = spec.fingerprint
    spec = replace(spec, base=(*CELL, *spec.base))
    found, refused = resolve_cells(spec, registry)
    predictions = scored(spec.predictions, [config for _, config in found])  # reports what is wrong before training
    keys = Keys()
    failures: list[LeftOut] = []
    searched: dict[str, Any] | None = None
    if tuning:
        found, searched = _tuned(spec, found, registry, cells, console, at_once, tuning)
    if spec.budget == "time":
        found, failures = _equal_time(found, registry, keys, cells, console)
    jobs = [Job(cell, cells / keys.key(config)) for cell, config in found]
    failures += run_jobs(jobs, at_once, console)
    wanted = Wanted(
        spec.name,
        spec.title,
        spec.metrics,
        spec.searches,
        spec.measures,
        spec.target,
        spec.budget,
        [
            {"name": each.cell.row, "column": each.cell.column, "seed": each.cell.seed, "reason": each.reason}
            for each in (*refused, *failures)
        ],
        spec.columns,
        spec.reference,
        fingerprint,
        _baselines([job.cell for job in jobs if job.done], spec.beside, registry, keys, cells, console),
        predictions,
        searched,
        spec.tuned,
    )
    return Result(compare(_groups(jobs), wanted), failures)


def _tuned(
    spec: Spec,
    shipped: Sequence[tuple[Cell, Config]],
    registry: Registry,
    cells: Path,
    console: Console,
    at_once: int,
    tuning: Tuning,
) -> tuple[list[tuple[Cell, Config]], dict[str, Any]]:
    """The cells with what was chosen for their rows, and the document of the search."""
    from xmclab_bench.study import Runner
    from xmclab_bench.tune import tune_rows

    plain, _ = resolve_cells(replace(spec, tuned={}), registry)
    runner = Runner(
        registry, cells, at_once, lambda text: console.print(text, style="dim", markup=False, soft_wrap=True)
    )
    chosen, searched = tune_rows(spec, plain, runner, tuning.journal, tuning.trials)
    every = [replace(cell, overrides=(*cell.overrides, *chosen.get((cell.row, cell.column), ()))) for cell, _ in plain]
    tuned = [(cell, resolve(cell.overrides, registry)) for cell in every]
    beside = [(replace(cell, row=f"{cell.row}, as shipped"), config) for cell, config in shipped]
    return [*tuned, *(beside if tuning.shipped else [])], searched


def _baselines(
    cells: Sequence[Cell], beside: Sequence[str], registry: Registry, keys: Keys, folder: Path, console: Console
) -> list[Baselines]:
    """The baselines that the spec asks for; without their packages the usual ones, and none if those fail too."""
    for chosen in dict.fromkeys((tuple(beside), ())):
        try:
            return measured(
                (resolve((*cell.overrides[len(CELL) :], *chosen), registry) for cell in cells), keys, folder
            )
        except Exception as error:  # a comparison that took hours does not fail for them
            told = f"{'some baselines left out' if chosen else 'no baselines'}: {exception_line(error)}"
            console.print(told, style="dim", markup=False, highlight=False, soft_wrap=True)
    return []


def _groups(jobs: Sequence[Job]) -> list[Group]:
    places = dict.fromkeys((job.cell.row, job.cell.column) for job in jobs if job.done)
    return [
        Group(
            row,
            column,
            [read_run(job.folder) for job in jobs if job.done and (job.cell.row, job.cell.column) == (row, column)],
        )
        for row, column in places
    ]


def _equal_time(
    found: Sequence[tuple[Cell, Config]], registry: Registry, keys: Keys, cells: Path, console: Console
) -> tuple[list[tuple[Cell, Config]], list[LeftOut]]:
    """The cells with as many epochs as fit the time of the first row that trains; one epoch of each is timed first."""
    pilots: dict[tuple[str, str], Job] = {}
    for cell, _ in found:
        if (cell.row, cell.column) not in pilots:
            pilot = replace(cell, overrides=(*cell.overrides, "epochs=1", "evaluate.every=0"))
            job = Job(pilot, cells / keys.key(resolve(pilot.overrides, registry)))
            pilots[cell.row, cell.column] = job
    failed = {(left.cell.row, left.cell.column): left for left in run_jobs(list(pilots.values()), 1, console)}
    seconds = {place: _train_seconds(job) for place, job in pilots.items() if job.done}
    first = next(((cell, config) for cell, config in found if (cell.row, cell.column) in seconds), None)
    timed: list[tuple[Cell, Config]] = []
    failures: list[LeftOut] = []
    for cell, _ in found:
        place = cell.row, cell.column
        if first is None or place not in seconds:
            failures.append(replace(failed[place], cell=cell))
            continue
        budget = seconds[first[0].row, first[0].column] * first[1].settings.epochs
        changed = replace(cell, overrides=(*cell.overrides, f"epochs={max(1, round(budget / seconds[place]))}"))
        timed.append((changed, resolve(changed.overrides, registry)))
    return timed, failures


def _train_seconds(job: Job) -> float:
    measured = read_run(job.folder).measure("train")
    assert measured is not None, "a finished run records its time"
    return measured
