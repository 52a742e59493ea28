"""`xmclab tune`: the best settings of a recipe for some data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmclab.cli.common import Json, print_json
from xmclab.errors import ConfigError, Problem
from xmclab.system.terminal import printable
from xmclab_bench.cli import ended_by_sigterm, needs_tune
from xmclab_bench.run_folder import RESULT
from xmclab_bench.write import PAGE

if TYPE_CHECKING:
    from xmclab_bench.tune import Tuned

UNITS = {"s": 1, "m": 60, "h": 3600}


def tune(
    overrides: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE", help="What to tune, as for `run`: recipe=unidec data=mine.csv.")
    ],
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, help="Number of trials, earlier ones included.")
    ] = 30,
    time: Annotated[str, typer.Option("--time", metavar="1h30m", help="Begin no trial after this time.")] = "",
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="Metric to choose by.")] = "P@1",
    space: Annotated[
        Path | None, typer.Option("--space", metavar="FILE", help="What to try; default: what the parts declare.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Number of parallel trials.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder; a study in it is continued.")
    ] = None,
    cells: Annotated[Path, typer.Option("--cells", metavar="DIR", help="Folder of cached trials.")] = Path(
        "runs/cells"
    ),
    train: Annotated[
        bool, typer.Option(help="Train with the best settings on all training queries, and test, at the end.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Search the best settings on validation queries; the test queries are looked at once, after that.

    The first trial has the settings of the recipe. Interrupt it and run it again to continue; several processes with
    the same --out share the work.
    """
    needs_tune()
    from xmclab.host import default_registry
    from xmclab.system.console import Console
    from xmclab_bench.study import Runner
    from xmclab_bench.tune import tune as search

    if fixed := [text for text in overrides if text.startswith("validate.metric=")]:
        raise ConfigError(Problem(fixed[0], "is set by --metric"))
    console = Console(file=sys.stderr)
    registry = default_registry()
    out = out or Path("runs") / f"tune-{_name(overrides)}"

    def tell(text: str) -> None:
        console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    with ended_by_sigterm():
        runner = Runner(registry, cells, jobs, tell)
        found = search(overrides, registry, runner, out, trials, metric, space, _seconds(time))
        run = _train(found, out) if train else None
    _show(found, out, run, as_json)


def _name(overrides: list[str]) -> str:
    """Of the folder: the recipe and the data."""
    given = dict(text.partition("=")[::2] for text in overrides)
    return "-".join(Path(given[key]).stem for key in ("recipe", "data") if given.get(key)) or "custom"


def _seconds(text: str) -> float | None:
    if not text:
        return None
    parts = re.findall(r"(\d+)([smh])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(Problem(f"--time {text}", "is not a time", "such as 90s, 45m or 1h30m"))
    return float(sum(int(number) * UNITS[unit] for number, unit in parts))


def _train(found: Tuned, out: Path) -> Path:
    """The run with the best settings, unless it is there."""
    folder = out / f"run-{found.best.number}"
    if not (folder / RESULT).is_file():
        command = [sys.executable, "-m", "xmclab", *found.arguments, "--out", str(folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
        sys.stderr.write(done.stdout)  # its table; stdout has what was found
        if done.returncode:
            raise typer.Exit(done.returncode)
    return folder


def _show(found: Tuned, out: Path, run: Path | None, as_json: bool) -> None:
    from xmclab.system.files import new_file
    from xmclab_bench.tune_page import importances, tune_page

    with new_file(out / PAGE, str(out)) as stream:
        stream.write(tune_page(found, str(run or "")))
    document: dict[str, Any] = {
        "metric": found.question.metric,
        "score": found.best.value,
        "trial": found.best.number,
        "chosen": dict(found.chosen),
        "importances": dict(importances(found)),
        "command": found.command,
        "recipe": str(found.recipe),
        "run": str(run) if run else None,
        "page": str(out / PAGE),
    }
    if as_json:
        print_json(document)
        return
    print(f"best: {document['metric']} {document['score']:.2f} on the validation queries, by trial {document['trial']}")
    if run:
        search, metrics = list(json.loads((run / RESULT).read_text(encoding="utf-8"))["metrics"].items())[-1]
        print(f"test: {document['metric']} {metrics[document['metric']]:.2f} by {search}")
    print(printable(found.command))
    print(f"recipe: {document['recipe']}\nreport: {document['page']}" + (f"\nrun: {run}" if run else ""))
