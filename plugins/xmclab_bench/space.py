"""What tuning tries: the values that the options of a config declare, or those of a file.

encoder.lr: log(1e-3, 3e-2)                  spread evenly in their logarithm
encoder.feature_dropout: linear(0, 0.5)      spread evenly
pool.beta: [3, 10]                           one of these

A key of a recipe with stages is tried apart in every stage that has the option: as `stages.phi.encoder.lr` and
`stages.psi.encoder.lr`, which a file may also name. What a stage freezes is not tried there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab.host.recipes import Entry, read_recipe
from xmclab.options import OneOf, Span

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from xmclab.host import Config

SPAN = re.compile(r"(log|linear)\(\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)")
DIGITS = 3  # of a number that was drawn: more would only be noise in recipes


@dataclass(frozen=True)
class Axis:
    """An option and the values to try."""

    key: str
    values: Span | OneOf
    whole: bool = False  # integers only

    def has(self, value: Any) -> bool:
        """Whether a value of the option can be drawn."""
        if isinstance(self.values, OneOf):
            return typed(value) in map(typed, self.values.values)
        return isinstance(value, (int, float)) and self.values.low <= value <= self.values.high

    def stored(self, value: Any) -> Any:
        """The value as a trial keeps it."""
        return typed(value) if isinstance(self.values, OneOf) else value

    def draw(self, trial: BaseTrial) -> str:
        """A value for a trial, as it is typed."""
        if isinstance(self.values, OneOf):
            return str(trial.suggest_categorical(self.key, [typed(value) for value in self.values.values]))
        low, high, log = self.values.low, self.values.high, self.values.log
        if self.whole:
            return str(trial.suggest_int(self.key, round(low), round(high), log=log))
        return typed(trial.suggest_float(self.key, low, high, log=log))


def typed(value: Any) -> str:
    """A value as one types it in an override."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def declared(config: Config) -> list[Axis]:
    """The options of the config that say what to try, but for those that an override has set.

    The value of the config is always among those to try.
    """
    values, typed_in = values_of(config), overridden(config)
    return [
        Axis(key, _with(option.search, values.get(key)), option.type is int)
        for prefix, stage in stages(config)
        for key, option in _options(prefix, stage).items()
        if option.search is not None and key not in typed_in and not _in_expression(stage, key.removeprefix(prefix))
    ]


def stages(config: Config) -> list[tuple[str, Config]]:
    """The stages of a config, the last one last, and what their keys begin with; nothing if it has none."""
    if not config.earlier:
        return [("", config)]
    return [(f"stages.{stage.stage}.", stage) for stage in (*config.earlier.values(), config)]


def tunable(config: Config) -> dict[str, Any]:
    """The options that can be tried, by their keys: those of every stage, but not of what it freezes."""
    return {key: option for prefix, stage in stages(config) for key, option in _options(prefix, stage).items()}


def _options(prefix: str, stage: Config) -> dict[str, Any]:
    frozen = tuple(f"{place}." for place in stage.settings.freeze)
    return {f"{prefix}{key}": option for key, option in stage.options().items() if not key.startswith(frozen)}


def overridden(config: Config) -> set[str]:
    """The keys that were set on the command line."""
    return {
        f"{prefix}{key}"
        for prefix, stage in stages(config)
        for key, source in stage.sources.items()
        if source == "override"
    }


def values_of(config: Config) -> dict[str, Any]:
    """The value of every option of a config, by its key."""
    values: dict[str, Any] = {}
    for prefix, stage in stages(config):
        values |= {f"{prefix}{key}": option.default for key, option in stage.options().items()}
        values |= {f"{prefix}{key}": value for key, value, _ in stage.explain()}
    return values


def in_stages(entries: list[Entry], config: Config) -> list[Entry]:
    """The entries of a space; one that names no stage stands for every stage that has the option."""
    found = []
    for entry in entries:
        keys = [f"{prefix}{entry.key}" for prefix, _ in stages(config)]
        having = [key for key in keys if key in tunable(config)]
        found += [replace(entry, key=key) for key in having or [entry.key]]
    return found


def _with(values: Span | OneOf, value: Any) -> Span | OneOf:
    """The values to try, and this one."""
    if value is None:
        return values
    if isinstance(values, Span):
        return replace(values, low=min(values.low, value), high=max(values.high, value))
    return values if value in values.values else OneOf((*values.values, value))


def _in_expression(config: Config, key: str) -> bool:
    """Whether an option of a loss is set where the loss is named: `focal(gamma=2)`."""
    place, _, rest = key.partition(".")
    head, _, of_term = rest.partition(".")
    if place != "loss":
        return False
    return any(of_term == f"{term.name}.{name}" for term in config.losses[head].terms for name in term.options)


def read_space(path: Path, config: Config) -> list[Axis]:
    """The space of a file, for a config that has all of its keys.

    Raises:
        ConfigError: with every problem of the file.
    """
    return space_of(read_recipe(path), config)


def space_of(entries: list[Entry], config: Config) -> list[Axis]:
    """The space that these entries describe.

    Raises:
        ConfigError: with every problem of them.
    """
    options = tunable(config)
    problems, axes = [], []
    for entry in in_stages(entries, config):
        option = options.get(entry.key)
        if option is None:
            hint = did_you_mean(entry.key, options)
            if entry.key in config.parts or entry.key in config.sources:
                hint = "a space holds options; compare parts with xmclab bench"
            problems.append(Problem(entry.where, "the config has no such option", hint))
            continue
        try:
            values = _values(entry)
            for value in values.ends:
                option.convert(str(value) if option.type is not int else value)
            axes.append(Axis(entry.key, values, option.type is int))
        except ValueError as error:
            problems.append(Problem(entry.where, str(error), option.help))
    if problems or not axes:
        raise ConfigError(*(problems or [Problem("space", "names nothing to try")]))
    return axes


def _values(entry: Entry) -> Span | OneOf:
    if isinstance(entry.value, list):
        return OneOf(tuple(entry.value))
    match = SPAN.fullmatch((entry.value or "").strip())
    if match is None:
        raise ValueError(f"{entry.value!r} is not a space; write log(1e-3, 1e-1), linear(0, 0.5) or [3, 10]")
    return Span(float(match[2]), float(match[3]), log=match[1] == "log")


def described(axes: list[Axis]) -> Mapping[str, str]:
    """The space as JSON values, to compare and to show."""
    return {axis.key: str(axis.values) for axis in axes}
