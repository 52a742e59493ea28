"""The hooks that a plugin may implement. Importing this module is cheap: no torch.

A plugin is a module with functions of these names marked `@xmclab.hookimpl`, made known by an entry point of
group `xmclab`, or given on the command line as `plugin=./file.py`. A function may leave out arguments of its hook.

Hooks named `xmclab_on_...` are told what happens in a run and cannot change it: they get copies, what they return is
ignored, and one that raises is warned of and not called again in that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pluggy

PROJECT = "xmclab"
API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

KINDS = (
    "encoder",
    "head",
    "sampler",
    "miner",
    "reduction",
    "loss",
    "index",
    "reader",
    "tracker",
    "baseline",
)


@dataclass(frozen=True)
class PartRef:
    """A part under a name: its kind, and the class or a lazy `"module:attribute"` reference to it."""

    kind: str
    name: str
    target: type | str
    unusable: str = ""


@dataclass(frozen=True)
class RunContext:
    """The run that a hook is told of."""

    folder: Path  # the run folder
    config: Mapping[str, Any]  # resolved and nested, as in `config.yaml`: `config["pool"]["beta"]`
    steps: int  # that it takes if nothing stops it


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    error: str  # the name of the exception that ended it, such as "DivergedError" or "KeyboardInterrupt"; empty: none
    message: str  # what that exception says, its first line
    seconds: float  # of the whole run
    metrics: Mapping[str, Mapping[str, float]]  # of the last evaluation, by search and metric; empty: there was none


def part(kind: str, name: str, target: type | str = "", *, unusable: str = "") -> PartRef:
    """Name a part, for `xmclab_parts`: `part("loss", "ds", "xmclab_ds.loss:DecoupledSoftmax")`.

    Args:
        unusable: in place of a target, why a name that users may expect cannot be had: what they are told.
    """
    return PartRef(kind, name, target, unusable)


@hookspec
def xmclab_parts() -> list[PartRef]:  # type: ignore[empty-body]
    """Supply parts: losses, reductions, samplers, miners, encoders, heads, indexes, readers, trackers, baselines.

    A target given as `"module:attribute"` is imported only when the part is used, so that listing commands stay fast.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_parts():
        ...     return [xmclab.part("loss", "ds2", "xmclab_ds.loss:DecoupledSoftmax")]
    """


@hookspec
def xmclab_recipes() -> dict[str, Path]:  # type: ignore[empty-body]
    """Supply recipes: a name and the YAML file that chooses parts and numbers.

    Example:
        >>> import xmclab
        >>> from pathlib import Path
        >>> @xmclab.hookimpl
        ... def xmclab_recipes():
        ...     return {"mine": Path("mine.yaml")}
    """


@hookspec
def xmclab_datasets() -> dict[str, Path]:  # type: ignore[empty-body]
    """Supply data sets by name: each the folder that a reader opens for `data=NAME`.

    Example:
        >>> import xmclab
        >>> from pathlib import Path
        >>> @xmclab.hookimpl
        ... def xmclab_datasets():
        ...     return {"ours": Path("ours")}
    """


@hookspec
def xmclab_on_run_start(run: RunContext) -> None:
    """Called once, before the first step, when the run folder has its `config.yaml` and `environment.json`.

    A run that cannot begin (a wrong config, missing data) does not get here.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_on_run_start(run):
        ...     print(f"{run.steps} steps, seed {run.config['seed']}, into {run.folder}")
    """


@hookspec
def xmclab_on_step(run: RunContext, record: Mapping[str, Any]) -> None:
    """Called after every step.

    Args:
        record: `step` and `epoch` (from 0), `last_of_epoch`, `loss`, `gradient_norm`, `terms` (by
            `head/loss/direction`), `queries`, `pool`, `positives` (per query), `dropped` (queries without one),
            `missing_negatives`, `seconds`.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_on_step(record):
        ...     if record["last_of_epoch"]:
        ...         print(f"step {record['step']}: loss {record['loss']:.3f}")
    """


@hookspec
def xmclab_on_refresh(run: RunContext, record: Mapping[str, Any]) -> None:
    """Called when all queries and labels were encoded anew, and clusters or negatives made from them.

    Args:
        record: `epoch` (from 0) that the refresh comes before, `seconds`, and what the miner reports.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_on_refresh(record):
        ...     print(f"refreshed in {record['seconds']:.1f} s")
    """


@hookspec
def xmclab_on_eval(run: RunContext, epoch: int, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Called after every evaluation: every `evaluate.every` epochs, and at the end.

    Args:
        epoch: how many epochs are done.
        metrics: percent by search (`de`, `clf`, `de+clf`) and metric (`P@1`, ...).

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_on_eval(epoch, metrics):
        ...     print(epoch, max((row["P@1"], search) for search, row in metrics.items()))
    """


@hookspec
def xmclab_on_run_end(run: RunContext, outcome: RunOutcome) -> None:
    """Called once if the run started, however it ended: the run folder is complete, or has what there is.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_on_run_end(run, outcome):
        ...     print(f"{run.folder}: {outcome.error or 'finished'} after {outcome.seconds:.0f} s")
    """
