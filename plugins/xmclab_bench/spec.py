"""A bench spec: which runs are compared, declared in YAML and changed by `KEY=VALUE` on the command line.

# The first comment line is the title.
base: [recipe=unidec, evaluate.every=1]   overrides of every cell
rows:                                     named variants: each with its overrides; if omitted, the grid makes the rows
  SC; SC: [loss.de=supcon, loss.clf=supcon]
tuned:                                    what `--tune` chose for a row; left out when rows are tuned again
  SC; SC: [encoder.lr=4e-3]
space:                                    what `--tune` tries; if omitted, what the options of each row declare
  encoder.lr: log(1e-3, 3e-2)
grid:                                     every combination of these values
  seed: [0, 1, 2]
  pool.eta: [0, 6]
columns: pool.eta                         a key of the grid whose values are kept apart: rows are compared within each
searches: [de, clf, de+clf]
metrics: [P@1, P@5, PSP@1, PSP@5]
measures: [train, memory, pool]           what is shown beside the metrics, of `xmclab_bench.run_folder.MEASURES`
target: P@1=40                            for the measure `target`: training seconds until a search reaches it
reference: SC; SC                         the row that differences are shown against; by default the best
budget: steps                             or `time`: as many epochs as take the time of the first row
unfit: refuse                             or `skip`: list the rows that no config allows, and compare the others
predictions:                              files of other programs, as `xmclab score` reads them, shown beside the rows
  XR-Linear: pecos/{data}.txt             {data} is the name of the data set

Rows, and the values of the grid, are combined; a combination that no config allows (a binary loss under a softmax
reduction) is skipped and listed, unless that leaves a row or a value without any cell (see `unfit`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab.host import SHORTHANDS
from xmclab.host.recipes import Entry, Value, is_file_name, read_recipe, summary
from xmclab_bench.run_folder import MEASURES, TARGET

if TYPE_CHECKING:
    from xmclab.host import Config, Registry

SEED = "seed"
BASELINE = "baseline"
SHOWN = 20  # unknown keys
SEARCHES = ("de", "clf", "de+clf")
VOTES = ("nn", "de+nn", "clf+nn", "de+clf+nn")  # shown if asked for
METRIC = re.compile(r"(P|PSP|nDCG|PSnDCG|R|PSR)@[1-9][0-9]*")
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")  # shown unless the spec names others
BUDGETS = ("steps", "time")
UNFIT = ("refuse", "skip")
GROUPS = ("rows", "tuned", "space", "grid", "predictions")  # keys that hold others
KEYS = ("base", *GROUPS, "columns", "searches", "metrics", "measures", "target", "budget", "reference", "unfit")
SHOWN_KEYS = ("searches", "metrics", "measures", "target", "reference", "unfit", "predictions")
ONLY_SHOWN = ("title", "notes", "beside", *SHOWN_KEYS)


@dataclass(frozen=True)
class Cell:
    """One run of a bench."""

    variant: str  # the named row it belongs to, empty if the spec names none
    row: str
    column: str  # empty without columns
    seed: int
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class LeftOut:
    """A cell without a result: a combination that no config allows, or a run that failed."""

    cell: Cell
    reason: str
    exit_code: int = 0  # of the run, if there was one


@dataclass(frozen=True)
class Spec:
    """A declared comparison. Everything but the cells' configs has been checked."""

    name: str
    title: str
    base: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    grid: Mapping[str, tuple[str, ...]]
    columns: str
    searches: tuple[str, ...]
    metrics: tuple[str, ...]
    measures: tuple[str, ...]
    target: tuple[str, float] | None
    budget: Literal["steps", "time"]
    notes: tuple[str, ...] = ()  # overrides that some rows ignore
    reference: str = ""  # the row that others are compared with; empty: the best
    tuned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by row: settings chosen on validation
    space: Mapping[str, Value] = field(default_factory=dict)  # what tuning tries; empty: what the options declare
    tune: bool = False  # rows are tuned before they are compared
    unfit: Literal["refuse", "skip"] = "refuse"  # rows that no config allows
    beside: tuple[str, ...] = ()  # overrides that choose the baselines
    predictions: Mapping[str, str] = field(default_factory=dict)  # by name: the file, with `{data}` for the data set

    @property
    def fingerprint(self) -> str:
        """Equal for specs of the same cells."""
        decides = {name: value for name, value in asdict(self).items() if name not in ONLY_SHOWN}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:20]

    def cells(self) -> Iterator[Cell]:
        """Every combination, rows outermost and seeds innermost."""
        keys = [key for key in self.grid if key not in (SEED, self.columns)]
        combinations = list(itertools.product(*(self.grid[key] for key in keys)))
        for (name, overrides), values in itertools.product(self.rows.items(), combinations):
            chosen = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
            row = ", ".join([name, *chosen] if name else chosen) or "base"
            for column in self.grid[self.columns] if self.columns else ("",):
                beside = [f"{self.columns}={column}"] if column else []
                for seed in self.grid[SEED]:
                    tuned = self.tuned.get(name, ())
                    every = (*self.base, *tuned, *overrides, *chosen, *beside, f"{SEED}={seed}")
                    yield Cell(name, row, column, int(seed), every)


def named_specs() -> dict[str, Path]:
    """The specs that ship with the plugin."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "specs").glob("*.yaml"))}


def load_spec(name: str, overrides: Sequence[str]) -> Spec:
    """The spec of this name or file, changed by what was typed.

    `KEY=a,b` with a key of the grid (or `seed`) replaces its values; `metrics=`, `searches=`, `columns=`, `measures=`,
    `target=`, `budget=`, `reference=` and `unfit=` replace those of the spec; `predictions.NAME=FILE` adds a file;
    anything else is an override of every cell, or of the baselines beside them.

    Raises:
        ConfigError: with every problem of the spec.
    """
    named = named_specs()
    if not is_file_name(name) and name not in named:
        meant = did_you_mean(name, named)
        hint = f"{meant}{'' if meant.endswith('?') else ';'} your own file: ./{name}.yaml"
        raise ConfigError(Problem("", f"unknown spec {name!r}", hint))
    return _Reader(Path(name) if is_file_name(name) else named[name], overrides).spec()


def resolve_cells(spec: Spec, registry: Registry) -> tuple[list[tuple[Cell, Config]], list[LeftOut]]:
    """The config of every cell, and the combinations that have none.

    Raises:
        ConfigError: a row or a value of the grid has no combination that works, or two cells are the same run.
    """
    from xmclab.host import resolve

    found: list[tuple[Cell, Config]] = []
    refused: list[LeftOut] = []
    for cell in spec.cells():
        try:
            found.append((cell, resolve(cell.overrides, registry)))
        except ConfigError as error:
            refused.append(LeftOut(cell, "; ".join(map(str, error.problems))))
    _refuse_useless(spec, [cell for cell, _ in found], refused)
    if spec.beside and spec.unfit == "refuse":
        plain = [text for text in found[0][0].overrides if not _below(text, BASELINE)]
        resolve([*plain, *spec.beside], registry)  # reports baselines that cannot be used
    _refuse_same(found)
    _refuse_unmeasured(spec, [config for _, config in found])
    _refuse_other_propensities(found)
    return found, refused


def _refuse_useless(spec: Spec, cells: Sequence[Cell], refused: Sequence[LeftOut]) -> None:
    """Refuse rows and values of the grid that no config allows in any combination."""
    if not cells:
        reasons = dict.fromkeys(f"no cell can run: {refusal.reason}" for refusal in refused)
        raise ConfigError(*(Problem(spec.name, reason) for reason in reasons or ["the grid is empty"]))
    works = {text for cell in cells for text in (*cell.overrides, cell.variant)}
    problems: dict[str, Problem] = {}
    for refusal in refused:
        cell = refusal.cell
        whole_row = cell.variant and cell.variant not in works
        for text in (cell.variant,) if whole_row else cell.overrides[len(spec.base) :]:
            if text not in works:
                problems.setdefault(
                    text, Problem(f"{spec.name}: {text}", f"none of its cells can run: {refusal.reason}")
                )
    if problems and spec.unfit == "refuse":
        raise ConfigError(*problems.values())


def _refuse_same(found: Sequence[tuple[Cell, Config]]) -> None:
    seen: dict[str, Cell] = {}
    problems = []
    for cell, config in found:
        first = seen.setdefault(repr(config.to_dict()), cell)
        if first is not cell:
            names = [f"{each.row}{each.column and ', ' + each.column}, seed {each.seed}" for each in (first, cell)]
            problems.append(Problem("", f"two cells have the same config: {names[0]!r} and {names[1]!r}"))
    if problems:
        raise ConfigError(*problems)


def _refuse_unmeasured(spec: Spec, configs: Sequence[Config]) -> None:
    """Refuse metrics that are not among those of any cell."""
    from xmclab.evaluation.metrics import metrics_of

    measured: set[str] = set()
    for settings in {config.settings.evaluate for config in configs}:
        deepest = max(*settings.k, *settings.recall_k)
        measured |= metrics_of(deepest, deepest, settings.k, settings.recall_k).keys()
    wanted = {"metrics": spec.metrics, "target": spec.target[:1] if spec.target else ()}
    hint = f"set evaluate.k or evaluate.recall_k; measured: {', '.join(sorted(measured))}"
    problems = [
        Problem(f"{spec.name}: {key}", f"no cell measures {metric}", hint)
        for key, metrics in wanted.items()
        for metric in metrics
        if metric not in measured
    ]
    if problems:
        raise ConfigError(*problems)


def _refuse_other_propensities(found: Sequence[tuple[Cell, Config]]) -> None:
    """Refuse rows that are compared on the same data, but not by the same propensity model."""
    seen: dict[tuple[str, str], Any] = {}
    for cell, config in found:
        ours = config.settings.evaluate.propensity
        theirs = seen.setdefault((cell.column, config.data_key()), ours)
        if theirs != ours:
            reason = f"{ours} in row {cell.row!r}, {theirs} in others: PSP, PSnDCG and PSR cannot be compared"
            raise ConfigError(Problem("evaluate.propensity", reason, "set it for all rows, or make it the columns"))


class _Reader:
    """One reading: collects the values of a spec and every problem with them."""

    def __init__(self, path: Path, overrides: Sequence[str]) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.unknown = 0  # number of unknown keys
        self.base: list[str] = []
        self.rows: dict[str, tuple[str, ...]] = {}
        self.grid: dict[str, tuple[str, ...]] = {}
        self.tuned: dict[str, tuple[str, ...]] = {}
        self.space: dict[str, Value] = {}
        self.predictions: dict[str, str] = {}
        self.values: dict[str, tuple[Entry, tuple[str, ...]]] = {}
        self.notes: list[str] = []
        for entry in read_recipe(path):
            self._take(entry)
        if self.unknown > SHOWN:
            self.problems.append(Problem("", f"... and {self.unknown - SHOWN:,} more unknown keys"))
        for text in overrides:
            self._override(text)
        self.grid.setdefault(SEED, ("0",))

    def _take(self, entry: Entry) -> None:
        group, _, name = entry.key.partition(".")
        values = _as_list(entry)
        if entry.key == "base":
            self.base += values
        elif group == "rows" and name:
            self.rows[name] = values
            if isinstance(entry.value, str) and "=" not in entry.value:
                hint = f"such as [{name.partition('.')[2]}={entry.value}]"
                self.problems.append(Problem(entry.where, "a row is a list of overrides", hint))
        elif group == "grid" and name:
            self.grid[name] = values
        elif group == "tuned" and name:
            self.tuned[name] = values
        elif group == "space" and name:
            self.space[name] = entry.value
        elif group == "predictions" and name:
            self._take_predictions(name, entry)
        elif entry.key in KEYS and group not in GROUPS:
            self.values[entry.key] = entry, values
        else:
            self.unknown += 1
            if self.unknown <= SHOWN:
                self.problems.append(Problem(entry.where, "unknown key", did_you_mean(group, KEYS)))

    def _take_predictions(self, name: str, entry: Entry) -> None:
        if isinstance(entry.value, str) and entry.value:
            self.predictions[name] = entry.value
        else:
            self.problems.append(Problem(entry.where, "predictions are a file", f"such as runs/{name}/{{data}}.txt"))

    def _override(self, text: str) -> None:
        key, equals, value = text.partition("=")
        group, _, name = key.partition(".")
        if not equals or not key:
            self.problems.append(Problem(text, "an override is KEY=VALUE", "such as epochs=2 or seed=0,1"))
        elif key in self.grid or key == SEED:
            self.grid[key] = split_list(value)
        elif group == "predictions" and name:
            self._take_predictions(name, Entry(key, value, "override", text))
        elif key in KEYS and key not in ("base", *GROUPS):
            self.values[key] = Entry(key, value, "override", key), split_list(value)
        elif group in GROUPS or key == "base":
            self.problems.append(self._only_in_files(text))
        else:
            self.base.append(text)
            self.tuned = {
                row: tuple(each for each in some if not _below(each, key)) for row, some in self.tuned.items()
            }
            deaf = [row for row, overrides in self.rows.items() if any(_sets(other, key) for other in overrides)]
            if deaf:
                self.notes.append(f"{text}: ignored by {', '.join(map(repr, deaf))}, which set it themselves")

    def _only_in_files(self, text: str) -> Problem:
        """Why a key of a spec cannot be an override, and what to type instead."""
        key, _, value = text.partition("=")
        group, _, name = key.partition(".")
        if group == "base":
            return Problem(text, "overrides are added to the base as they are", f"such as {value or 'epochs=2'}")
        if group == "grid" and name in self.grid:
            return Problem(text, "values of the grid are set by their key", f"{name}={value}")
        if group == "predictions":
            return Problem(text, "predictions have a name", "such as predictions.theirs=runs/theirs.txt")
        hint = f"edit a copy of {self.path}, and run xmclab bench ./COPY.yaml"
        return Problem(text, f"{group} can only be set in a spec file", hint)

    def spec(self) -> Spec:
        columns = self._one("columns", "")
        if columns and (columns not in self.grid or columns == SEED):
            others = [key for key in self.grid if key != SEED]
            self._wrong("columns", f"the grid has no key {columns!r}", did_you_mean(columns, others))
        for key, values in self.grid.items():
            if not values:
                self.problems.append(Problem(f"{self.path}: grid.{key}", "has no values"))
            for value in {value for value in values if values.count(value) > 1}:
                self.problems.append(Problem(f"{self.path}: grid.{key}", f"{value!r} is listed twice"))
        for seed in self.grid[SEED]:
            if not seed.isdecimal():
                self.problems.append(Problem(f"{self.path}: grid.{SEED}", f"{seed!r} is not an integer"))
        spec = Spec(
            name=self.path.stem,
            title=summary(self.path) or self.path.stem,
            base=tuple(text for text in self.base if not _below(text, BASELINE)),
            rows=self.rows or {"": ()},
            grid=self.grid,
            columns=columns,
            searches=self._names("searches", (*SEARCHES, *VOTES), SEARCHES),
            metrics=self._metrics(),
            measures=self._names("measures", MEASURES, ("train", "memory")),
            target=self._target(),
            budget="time" if self._names("budget", BUDGETS, ("steps",)) == ("time",) else "steps",
            notes=tuple(self.notes),
            reference=self._text("reference"),
            tuned=self.tuned,
            space=self.space,
            unfit="skip" if self._names("unfit", UNFIT, ("refuse",)) == ("skip",) else "refuse",
            beside=tuple(text for text in self.base if _below(text, BASELINE)),
            predictions=self.predictions,
        )
        rows = {cell.row for cell in spec.cells()} if not self.problems else {spec.reference}
        if spec.reference and spec.reference not in rows:
            self._wrong("reference", f"there is no row {spec.reference!r}", did_you_mean(spec.reference, rows))
        for name in self.predictions.keys() & rows:
            self.problems.append(Problem(f"predictions.{name}", "a row has this name", "choose another"))
        for row in self.tuned.keys() - self.rows.keys():
            hint = did_you_mean(row, self.rows)
            self.problems.append(Problem(f"{self.path}: tuned.{row}", "there is no such row", hint))
        if not self.rows and set(self.grid) == {SEED}:
            self.problems.append(Problem(str(self.path), "declares nothing to compare", "add rows or a grid"))
        if TARGET in spec.measures and spec.target is None:
            spec = replace(spec, measures=tuple(name for name in spec.measures if name != TARGET))
        if self.problems:
            raise ConfigError(*self.problems)
        return spec

    def _names(self, key: str, known: Collection[str], default: tuple[str, ...]) -> tuple[str, ...]:
        _, values = self.values.get(key, (None, default))
        if not values:
            self._wrong(key, "is empty", "known: " + ", ".join(known))
        for value in values:
            if value not in known:
                self._wrong(key, f"there is no {value!r}", did_you_mean(value, known))
        return values

    def _metrics(self) -> tuple[str, ...]:
        """Whether they are measured is known with the configs."""
        _, values = self.values.get("metrics", (None, METRICS))
        for value in [value for value in values if not METRIC.fullmatch(value)]:
            self._wrong("metrics", f"there is no {value!r}", did_you_mean(value, METRICS))
        if not values:
            self._wrong("metrics", "is empty", "such as P@1,PSP@5,nDCG@5,R@100")
        return values

    def _one(self, key: str, default: str) -> str:
        _, values = self.values.get(key, (None, (default,)))
        if len(values) != 1:
            self._wrong(key, "takes one value")
            return default
        return values[0]

    def _text(self, key: str) -> str:
        """As typed: the name of a row may have commas."""
        entry, _ = self.values.get(key, (None, ()))
        return str(entry.value) if entry and entry.value is not None else ""

    def _target(self) -> tuple[str, float] | None:
        text = self._one("target", "")
        if not text:
            return None
        metric, _, number = text.partition("=")
        if not METRIC.fullmatch(metric) or not re.fullmatch(r"\d+(\.\d+)?", number):
            self._wrong("target", f"{text!r} is not METRIC=PERCENT", "such as P@1=40")
            return None
        return metric, float(number)

    def _wrong(self, key: str, message: str, hint: str = "") -> None:
        entry = self.values[key][0] if key in self.values else None
        self.problems.append(Problem(entry.where if entry else f"{self.path}: {key}", message, hint))


def _as_list(entry: Entry) -> tuple[str, ...]:
    if entry.value is None:
        return ()
    return (entry.value,) if isinstance(entry.value, str) else tuple(entry.value)


def _sets(override: str, key: str) -> bool:
    """Whether an override sets the key, or what it stands for (`loss` stands for loss.de and loss.clf)."""
    other = override.partition("=")[0]
    return other == key or other in SHORTHANDS.get(key, ()) or key in SHORTHANDS.get(other, ())


def _below(override: str, key: str) -> bool:
    """Whether an override sets the key, or an option of what the key chooses."""
    other = override.partition("=")[0]
    return key == "recipe" or _sets(override, key) or other.startswith(f"{key}.")


def split_list(text: str) -> tuple[str, ...]:
    """The parts between commas outside of brackets: `ds,supcon(temperature=1, weight=2)` has two."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts if part.strip())
