"""Tuning: the best settings of one config for `xmclab tune`, or of every row of a bench."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from xmclab.data import own_validation
from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab.evaluation.metrics import metrics_of
from xmclab.host import Config, Registry, resolve
from xmclab.host.recipes import MADE_WITH, Entry, is_file_name, recipe_layers
from xmclab.system.files import new_file
from xmclab_bench.curves import tuning_curve
from xmclab_bench.space import Axis, declared, in_stages, overridden, read_space, space_of, stages, tunable, values_of
from xmclab_bench.spec import Cell, Spec
from xmclab_bench.study import EPOCH, GIVEN, JOURNAL, REASON, Question, Runner, best_of, drawn_by, ended, open_study

MANY = 1 << 30  # labels: metrics at any depth
SHARE = 0.2  # of the training queries, for validation, unless the config says otherwise
RECIPE = "recipe.yaml"
BASES = "bases"  # folder of the files that the recipe builds on


@dataclass(frozen=True)
class Tuned:
    """The outcome of `xmclab tune`."""

    study: Study
    question: Question
    best: FrozenTrial
    chosen: Mapping[str, str]  # values of the best trial, as they are typed, and its number of epochs
    arguments: tuple[str, ...]  # of `xmclab`, to train with them
    recipe: Path

    @property
    def command(self) -> str:
        return shlex.join(["xmclab", *self.arguments])


def tune(
    overrides: Sequence[str],
    registry: Registry,
    runner: Runner,
    out: Path,
    trials: int,
    metric: str,
    space: Path | None = None,
    seconds: float | None = None,
) -> Tuned:
    """Search the space of a config, beginning with the config itself; write the best as a recipe.

    Args:
        overrides: the config.
        out: the folder of the journal and the recipe; a study in it is continued.
        seconds: no trial begins later.

    Raises:
        ConfigError: the config or the space has problems, or no trial was complete.
    """
    config = resolve(overrides, registry)
    measured = config.settings.evaluate
    known = metrics_of(measured.depth, MANY, measured.k, measured.recall_k)
    if metric not in known:
        raise ConfigError(Problem(f"--metric {metric}", "there is no such metric", did_you_mean(metric, known)))
    axes = _axes(config, space)
    last, final = stages(config)[-1]
    by = final.settings.validate.search or final.make("search").names(final.heads)[-1]
    chosen_by = (f"validate.metric={metric}", f"{last}validate.search={by}")
    base = (*_validation(config), *chosen_by, *overrides)
    question = Question("tune", base, axes, metric, config.settings.seed, "guided")
    study = open_study(out / JOURNAL, question)
    if not study.get_trials(deepcopy=False):
        if first := _as_configured(config, axes):
            study.enqueue_trial(first, user_attrs={GIVEN: "recipe"})
        else:
            runner.tell("note: the recipe has a value outside the space, so the recipe itself is not tried")
    deadline = None if seconds is None else time.monotonic() + seconds
    runner.run(study, question, trials, deadline)
    best = best_of(study)
    if best is None:
        reasons = [trial.user_attrs.get(REASON, "") for trial in ended(study)]
        raise ConfigError(
            Problem("tune", f"none of {len(reasons)} trials was complete", next(filter(None, reasons), ""))
        )
    chosen = {**drawn_by(best, axes), f"{last}epochs": str(best.user_attrs[EPOCH])}
    typed = [text for text in overrides if text.partition("=")[0] not in chosen and not text.startswith("validate.")]
    recipe = _write_recipe(out / RECIPE, config, overrides, chosen)
    return Tuned(study, question, best, chosen, ("run", *typed, *_overrides(chosen)), recipe)


def _axes(config: Config, space: Path | None) -> list[Axis]:
    axes = declared(config) if space is None else read_space(space, config)
    if typed := [axis.key for axis in axes if axis.key in overridden(config)]:
        hint = "leave it out of one of them"
        raise ConfigError(*(Problem(key, "is set on the command line and tried by the space", hint) for key in typed))
    if not axes:
        hint = "name some with --space FILE, or leave their values to the recipe"
        raise ConfigError(Problem("tune", "no option of this config is left to try", hint))
    return axes


def _validation(config: Config) -> tuple[str, ...]:
    return () if config.settings.validate.on or own_validation(config) else (f"validate.share={SHARE}",)


def _as_configured(config: Config, axes: Sequence[Axis]) -> dict[str, Any]:
    """The config's own values of what is tried; none unless all of them can be drawn."""
    values = values_of(config)
    if not all(axis.has(values[axis.key]) for axis in axes):
        return {}
    return {axis.key: axis.stored(values[axis.key]) for axis in axes}


def _overrides(chosen: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in chosen.items()]


def _write_recipe(path: Path, config: Config, overrides: Sequence[str], chosen: Mapping[str, str]) -> Path:
    """A recipe with the chosen values over those that were typed, without the data."""
    given = dict(text.split("=", 1) for text in overrides)
    parent = given.pop("recipe", "")
    base = _kept_beside(path, Path(parent), config.registry) if is_file_name(parent) else parent
    plugins = [value for text in overrides for key, _, value in [text.partition("=")] if key == "plugin"]
    left_out = ("data", "plugin", "seed", "device")
    kept = {key: value for key, value in given.items() if key not in left_out and not key.startswith("validate.")}
    lines = [
        *([f"# {MADE_WITH}{' plugin='.join(plugins)}"] if plugins else []),
        f"# {config.recipe}, tuned on validation queries.",
        *([f"base: {base}"] if base else []),
        *(f"{key}: {value}" for key, value in {**kept, **chosen}.items()),
    ]
    with new_file(path, str(path)) as stream:
        stream.write("\n".join(lines) + "\n")
    return path


def _kept_beside(path: Path, parent: Path, registry: Registry) -> str:
    """The base of a recipe that builds on a file: a copy of the file, and of those it builds on, beside the recipe."""
    folder = parent.resolve().parent
    files = [layer.path.resolve() for layer in recipe_layers(str(parent), registry)]
    for file in files:
        if file.is_relative_to(folder):
            copy = path.parent / BASES / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return f"{BASES}/{parent.name}"


# The rows of a bench


def _of_row(spec: Spec, config: Config) -> list[Axis]:
    """What is tried for a row: of the spec's space what the row has and does not set itself."""
    if not spec.space:
        return declared(config)
    options, typed = tunable(config), overridden(config)
    declared_here = [Entry(key, value, spec.name, f"{spec.name}: space.{key}") for key, value in spec.space.items()]
    entries = [entry for entry in in_stages(declared_here, config) if entry.key in options and entry.key not in typed]
    return space_of(entries, config) if entries else []


def tune_rows(
    spec: Spec, cells: Sequence[tuple[Cell, Config]], runner: Runner, journal: Path, trials: int
) -> tuple[dict[tuple[str, str], tuple[str, ...]], dict[str, Any]]:
    """The same number of random trials for every row and column of a spec, and the same epochs for every trial.

    Returns:
        The overrides chosen for each row and column, and the document of the search.
    """
    chosen: dict[tuple[str, str], tuple[str, ...]] = {}
    rows = []
    metric = spec.metrics[0]
    first: dict[tuple[str, str], tuple[Cell, Config]] = {}
    for cell, config in cells:
        first.setdefault((cell.row, cell.column), (cell, config))
    configs = [config for _, config in first.values()]
    known = {key for config in configs for key in tunable(config)}
    known |= {key.removeprefix(prefix) for config in configs for prefix, _ in stages(config) for key in known}
    if unknown := [key for key in spec.space if key not in known]:
        raise ConfigError(
            *(Problem(f"space.{key}", "no row has such an option", did_you_mean(key, known)) for key in unknown)
        )
    for (row, column), (cell, config) in first.items():
        axes = _of_row(spec, config)
        if not axes:
            continue
        ranked = config.make("search").names(config.heads)
        search = [name for name in spec.searches if name in ranked] or ranked
        every = f"validate.every={config.settings.epochs}"  # trained to the end, as the seeds will be
        last, _ = stages(config)[-1]  # earlier stages may not have the search
        chosen_by = (f"validate.metric={metric}", f"{last}validate.search={search[-1]}")
        base = (*_validation(config), *chosen_by, every, "evaluate.every=0", *cell.overrides)
        question = Question(", ".join(filter(None, (row, column))), base, axes, metric, cell.seed)
        study = open_study(journal, question)
        runner.run(study, question, trials)
        best, some = best_of(study, trials), ended(study)[:trials]
        if best is not None:
            chosen[row, column] = tuple(_overrides(drawn_by(best, axes)))
        scores = [trial.value if trial.state == TrialState.COMPLETE else None for trial in some]
        rows.append(
            {
                "name": row,
                "column": column,
                "chosen": drawn_by(best, axes) if best else {},
                "search": search[-1],
                "space": question.asked["space"],
                "draws": [drawn_by(trial, axes) for trial in some],
                "scores": scores,
                "curve": tuning_curve(scores),
            }
        )
    return chosen, {"trials": trials, "metric": metric, "rows": rows}
