"""Training in Python: what `xmclab run` does, with the result as an object."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from xmclab.host.config import Config
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import DEFAULT_RECIPE
from xmclab.python.data import Data, Source, read
from xmclab.python.given import Given, Parts, python_names
from xmclab.python.html import curves_as_html, table_as_html
from xmclab.python.model import Model
from xmclab.python.predicts import Predicts
from xmclab.runs import replay as again
from xmclab.runs import store
from xmclab.runs.measure import Scores
from xmclab.runs.resume import overrides_of
from xmclab.runs.run import RunResult, print_result
from xmclab.runs.run import run as run_config
from xmclab.serve.predictor import Predictor
from xmclab.system import messages
from xmclab.system.console import Console
from xmclab.system.signals import Signals
from xmclab.system.trust import trusting_remote_code

WIDTH = 120  # columns of a result as text


@dataclass(frozen=True)
class Measured:
    """An evaluation during a run."""

    epoch: int
    split: str  # validation or test
    metrics: Scores


@dataclass(frozen=True)
class Curves:
    """How a run went."""

    steps: list[int]
    loss: list[float]  # at each of these steps
    terms: dict[str, list[float]]  # the same of each term: `clf/ds/q2l`
    evaluations: list[Measured]


@dataclass(frozen=True, repr=False)
class Run(Predicts):
    """A run that has ended."""

    folder: Path
    metrics: Scores  # search -> metric -> percent
    baselines: Scores
    document: dict[str, Any]  # what `xmclab run --json` prints
    registry: Registry = field(compare=False)  # with the parts that it was given

    @cached_property
    def model(self) -> Model:
        """The trained model, as `xmclab.load` opens it."""
        return Model(self.folder, self.registry, str(self.document["config"]["device"]))

    @property
    def curves(self) -> Curves:
        """Losses and evaluations, from the records in the run folder."""
        records = list(store.records(self.folder))
        steps = [record for record in records if record["event"] == "step"]
        evaluations = [record for record in records if record["event"] == "eval"]
        names = dict.fromkeys(name for step in steps for name in step["terms"])
        return Curves(
            [step["step"] for step in steps],
            [step["loss"] for step in steps],
            {name: [step["terms"].get(name, float("nan")) for step in steps] for name in names},
            [Measured(each["epoch"], each.get("split", "test"), each["metrics"]) for each in evaluations],
        )

    @property
    def predictor(self) -> Predictor:
        return self.model.predictor

    def __repr__(self) -> str:
        search, metrics = next(reversed(self.metrics.items()), ("", {}))
        shown = "".join(f", {metric} {value:.2f} by {search}" for metric, value in list(metrics.items())[:1])
        return f"Run({self.folder}: {self.document['recipe']} on {self.document['data']['name']}{shown})"

    def __str__(self) -> str:
        """The table that the command prints."""
        text = io.StringIO()
        result = RunResult(self.folder, self.metrics, self.baselines, self.document)
        print_result(Console(file=text, width=WIDTH), result)
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        data = self.document["data"]
        title = f"{self.document['recipe']} on {data['name']} ({data['test']} queries, {data['labels']} labels), in %"
        curves = self.curves
        return table_as_html(title, {**self.baselines, **self.metrics}) + curves_as_html(curves.steps, curves.loss)


def train(
    recipe: str | Path | None = DEFAULT_RECIPE,
    data: Data | Source = None,
    *overrides: str,
    out: str | Path | None = None,
    resume: bool = False,
    parts: Parts = (),
    quiet: bool = False,
    trust_remote_code: bool = False,
    **keywords: Any,
) -> Run:
    """Train and evaluate, as `xmclab run` does: `train("unidec", data, "loss.clf=ds+bce", epochs=5)`.

    Args:
        recipe: its name or file; None: no recipe, the defaults of every key.
        data: what `read` returns or takes; None: that of the recipe.
        overrides: as on the command line; they win over keywords.
        out: the run folder, new or empty; by default one in `runs`.
        resume: continue the run of `out` if there is one; if it has ended, return its result.
        parts: classes that overrides may name: `parts=[MyLoss], loss="my_loss+bce"`.
        quiet: show no progress, notes and warnings.
        trust_remote_code: run the code of a pretrained model, if it has any.
        keywords: overrides as values; a part may be a class or an object: `loss=MyLoss(margin=0.2)`. The run makes
            its own parts, from the class and the options of the object.

    Raises:
        XmclabError: what the command would print.
    """
    data = data if data is None or isinstance(data, Data) else read(data, quiet=quiet)
    given = Given.of(overrides, keywords, parts, data.registry if data else None)
    words = [f"recipe={recipe}"] if recipe is not None else []
    words += [f"data={data.source}", *data.words] if data else []
    config = resolve([*words, *given.words], given.registry)
    return _run(config, None if out is None else Path(out), resume, quiet, trust_remote_code, data)


def resume(
    folder: str | Path,
    *overrides: str,
    parts: Parts = (),
    quiet: bool = False,
    trust_remote_code: bool = False,
    **keywords: Any,
) -> Run:
    """Continue a run that was stopped or killed, as `xmclab run --resume` does; if it has ended, return its result.

    Args:
        parts: the classes that it was given from Python.
    """
    given = Given.of(overrides, keywords, parts)
    config = resolve([*overrides_of(Path(folder)), *given.words], given.registry)
    return _run(config, Path(folder), True, quiet, trust_remote_code)


def replay(folder: str | Path, *overrides: str, parts: Parts = (), **keywords: Any) -> again.Replay:
    """Repeat the step after the newest checkpoint of a run without an update, as `xmclab replay` does."""
    given = Given.of(overrides, keywords, parts)
    return again.replay(Path(folder), resolve([*overrides_of(Path(folder)), *given.words], given.registry))


def _run(
    config: Config, out: Path | None, resume: bool, quiet: bool, trust_remote_code: bool, data: Data | None = None
) -> Run:
    """The run of a config; data from memory is kept in its folder."""
    console = Console(quiet=True) if quiet else Console(file=sys.stderr)
    tables = data.tables if data else None
    with python_names(), showing(quiet, data), trusting_remote_code(trust_remote_code), Signals() as signals:
        for problem in config.registry.problems:
            logging.getLogger("xmclab.host").warning("%s", problem)
        try:
            found = run_config(config, out, console, resume=resume, signals=signals, tables=tables)
        except Exception as error:
            if fault := config.registry.fault_of(error):
                raise fault from error
            raise
    return Run(found.folder, found.metrics, found.baselines, found.document, config.registry)


def showing(quiet: bool, data: Data | None = None) -> AbstractContextManager[object]:
    """Print notes and warnings as the command does, but for those that reading the data has shown; or nothing."""
    if data is not None:
        return data.showing(quiet)
    return messages.kept() if quiet else messages.shown()
