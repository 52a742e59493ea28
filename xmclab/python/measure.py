"""Measuring models in Python, and comparing them: what `xmclab eval` and `xmclab report` do."""

from __future__ import annotations

import importlib
import io
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab.errors import PluginError, Problem
from xmclab.evaluation.report import print_table
from xmclab.host.registry import Registry, default_registry
from xmclab.python.data import Data, Source, read
from xmclab.python.given import Given, python_names
from xmclab.python.html import paragraphs, table_as_html
from xmclab.python.model import Model
from xmclab.python.run import WIDTH, Run, showing
from xmclab.serve import evaluation
from xmclab.system.console import Console
from xmclab.system.trust import trusting_remote_code

logger = logging.getLogger(__name__)
WIDE = 200, 24  # columns and lines of a comparison where no terminal says how many there are


@dataclass(frozen=True, repr=False)
class Evaluation(evaluation.Evaluation):
    """How good a model is on some data."""

    def __repr__(self) -> str:
        return f"Evaluation({self.title})"

    def __str__(self) -> str:
        """The table that the command prints."""
        text = io.StringIO()
        print_table(Console(file=text, width=WIDTH), self.title, self.metrics, {}, str(self.propensity))
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return table_as_html(self.title, self.metrics)


def evaluate(
    model: Model | Run | str | Path,
    data: Data | Source = None,
    *overrides: str,
    quiet: bool = False,
    trust_remote_code: bool = False,
    **keywords: Any,
) -> Evaluation:
    """Every metric of every search on the test queries of some data, as `xmclab eval` does.

    Args:
        model: a model, a run, or the folder of a run or an export.
        data: what `read` returns or takes; None: that of the run.
        overrides: how it is read, and what is measured: `"evaluate.k=1,3,5,10"`.
    """
    data = data if data is None or isinstance(data, Data) else read(data, quiet=quiet)
    given = Given.of(overrides, keywords, registry=_registry(model))
    words = [*(data.words if data else ()), *given.words]
    source, device = data.source if data else None, model.device if isinstance(model, Model) else "auto"
    with showing(quiet, data), trusting_remote_code(trust_remote_code):
        found = evaluation.evaluate_folder(_folder(model), source, given.registry, device, _note, words)
    return Evaluation(found.title, found.metrics, found.propensity, found.document)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs side by side."""

    document: dict[str, Any]  # what `xmclab report --json` prints

    def __repr__(self) -> str:
        return f"Comparison({self.document['title']}: {' '.join(self.verdict)})"

    @property
    def verdict(self) -> list[str]:
        """What was found, in words."""
        return list(self.document["verdict"]["sentences"])

    @property
    def tests(self) -> list[dict[str, Any]]:
        """The difference of every two runs in every search and metric: `value`, 95 % interval `low` to `high`, `p`."""
        return list(self.document["tests"])

    def __str__(self) -> str:
        """What the command prints, as wide as the terminal."""
        text = io.StringIO()
        width = shutil.get_terminal_size(WIDE).columns
        _bench("tables").print_document(Console(file=text, width=width, highlight=False), self.document)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def _repr_html_(self) -> str:
        rows = {
            f"{row['name']}, {row['search']}": {name: value["mean"] for name, value in row["metrics"].items()}
            for row in self.document["rows"]
        }
        best = {
            (f"{row['name']}, {row['search']}", name)
            for row in self.document["rows"]
            for name, value in row["metrics"].items()
            if value["best"]
        }
        return paragraphs(self.verdict) + table_as_html(self.document["title"], rows, best)


def compare(
    runs: Run | Model | str | Path | Sequence[Run | Model | str | Path], metrics: str | Sequence[str] | None = None
) -> Comparison:
    """Are the differences real? The paired test of `xmclab bench`, on the test queries that the runs share.

    Args:
        runs: or their folders; those that differ only in their seed share a row.
        metrics: one, or several such as `["P@1", "PSP@5"]`; by default P and PSP.

    Raises:
        PluginError: the plugin xmclab_bench is not installed.
    """
    several = [runs] if isinstance(runs, Run | Model | str | Path) else runs
    names = [metrics] if isinstance(metrics, str) else metrics
    with python_names():
        return Comparison(_bench("report").compare_folders([_folder(run) for run in several], names))


def _bench(module: str) -> Any:
    """A module of the plugin that compares runs."""
    try:
        return importlib.import_module(f"xmclab_bench.{module}")
    except ImportError as error:
        reason = f"cannot be imported: {error}"
        raise PluginError(Problem("xmclab_bench", reason, "it comes with xmclab: install the whole of it")) from error


def _note(text: str) -> None:
    logger.info("%s", text)


def _folder(model: Model | Run | str | Path) -> Path:
    return model.folder if isinstance(model, Model | Run) else Path(model)


def _registry(model: Model | Run | str | Path) -> Registry:
    return model.registry if isinstance(model, Model | Run) else default_registry()
