"""Resolves defaults, a recipe and overrides to one read-only config that remembers who set each value.

Order: schema and part defaults < base recipes < recipe < preset < overrides from left to right. Choosing another part
(or another loss expression) drops the options that lower layers set for the previous one (except which texts a reader
reads, as all readers have these options); within a layer the order of a choice and its options does not matter.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xmclab.errors import ConfigError, PluginError, Problem, XmclabError, closest
from xmclab.host.config import (
    CHOICES,
    SEVERAL,
    ChosenLoss,
    ChosenPart,
    Config,
    addresses,
    setting_options,
)
from xmclab.host.layers import COMMAND_LINE_ONLY, Layers
from xmclab.host.load import interface
from xmclab.host.options import Option, construct, options_of, read_options
from xmclab.host.recipes import CLASS_OF_PART, MADE_WITH, MADE_WITH_CLASSES, Entry, below
from xmclab.host.registry import Registry
from xmclab.host.schema import ALL, AUTO, GONE, HEADS, NONE, RENAMED, SHORT, SHORTHANDS, SLOTS, Settings
from xmclab.objectives.expr import TermSpec, parse_expression

MOST_UNKNOWN = 20  # unknown keys that are shown; suggesting what was meant takes milliseconds for each
WEIGHT = Option("weight", float, 1.0, "weight of the term", {"ge": 0})


def resolve(overrides: Sequence[str], registry: Registry) -> Config:
    """Resolve overrides such as `recipe=unidec`, `loss.clf=ds+bce`, `pool.beta=3` to a config.

    Raises:
        ConfigError: with every problem of the recipe and the overrides.
        PluginError: likewise, if a plugin caused one of them.
    """
    layers = Layers(overrides, registry)
    configs: dict[str, Config] = {}
    problems: list[Problem] = []
    at_fault = False
    for name in layers.stages or ("",):
        try:
            configs[name] = _Resolver(layers, name).config()
        except XmclabError as error:
            problems += error.problems
            at_fault |= isinstance(error, PluginError)
    if problems:
        raise (PluginError if at_fault else ConfigError)(*dict.fromkeys(problems))
    *earlier, last = configs
    return dataclasses.replace(configs[last], earlier={name: configs[name] for name in earlier})


def settle(config: Config, slot: str, name: str) -> Config:
    """The config with this part in a slot that was `auto`; its options are checked now.

    Raises:
        ConfigError: with every problem of the options.
    """
    kind, waiting = SLOTS[slot].kind, config.parts[slot]
    cls = config.registry.get(kind, name)
    pending = (waiting.pending if waiting else None) or {}
    known = {f"{slot}.{option}" for option in options_of(cls)}
    unknown = [entry for option, entry in pending.items() if f"{slot}.{option}" not in known]
    problems = [
        Problem(entry.where, f"unknown key for {kind} {name!r}", _suggest(entry.key, known))
        for entry in unknown[:MOST_UNKNOWN]
    ]
    if (more := len(unknown) - MOST_UNKNOWN) > 0:
        problems.append(Problem("", f"... and {more:,} more unknown keys"))
    mine = {option: entry for option, entry in pending.items() if f"{slot}.{option}" in known}
    values, wrong = _read_entries(slot, cls, mine)
    if problems or wrong:
        raise ConfigError(*problems, *wrong)
    return config.with_part(slot, ChosenPart(name, cls, values))


def unsettle(config: Config, slot: str) -> Config:
    """The config with a slot back at `auto`, keeping the options that all parts of the kind have."""
    part = config.parts[slot]
    values = {name: part.options[name] for name in SLOTS[slot].keeps if part.options[name] is not None} if part else {}
    pending = {name: Entry(f"{slot}.{name}", value, "config", f"{slot}.{name}") for name, value in values.items()}
    return config.with_part(slot, ChosenPart(AUTO, interface(SLOTS[slot].kind), values, pending=pending))


class _Resolver:
    """One resolution: collects what was set, then checks it all, collecting problems.

    Args:
        stage: the stage to resolve, if there are any.
    """

    def __init__(self, layers: Layers, stage: str) -> None:
        self.layers, self.stage, self.registry = layers, stage, layers.registry
        self.problems, self.plugin_at_fault = list(layers.problems), layers.plugin_at_fault
        self.settings: dict[str, Entry] = {}
        self.choices: dict[str, Entry] = {}  # of slots and expressions
        self.options: dict[str, dict[str, Entry]] = {place: {} for place in CHOICES}
        self.unknown: list[Entry] = []
        self.known: set[str] = {*setting_options(), *CHOICES, *SHORTHANDS, *SHORT, *COMMAND_LINE_ONLY}
        self.rejected: list[Entry] = []  # options that a part does not have
        self.accepted: set[int] = set()  # ids of entries that some part uses
        for layer in layers.of_stage(stage):
            self._apply(layer)

    def config(self) -> Config:
        settings = self._settings()
        heads = [head for head in HEADS if self._choice(f"head.{head}") != NONE]
        if not heads:
            places = " and ".join(f"head.{head}" for head in HEADS)
            self.problems.append(Problem(places, "both are none", "at least one head is required"))
        idle = {f"{kind}.{head}" for kind in ("reduction", "loss") for head in HEADS if head not in heads}
        for place in idle:
            # A shorthand for both heads is still checked against the other one.
            self.accepted |= {id(entry) for entry in self.options[place].values() if entry.key.startswith(place)}
        parts = {slot: self._part(slot) for slot in SLOTS if slot not in idle}
        losses = {head: self._loss(head, parts.get(f"reduction.{head}")) for head in heads}
        self._report_unknown()
        if self.problems:
            self._explain_missing_code()
            kind = PluginError if self.plugin_at_fault else ConfigError
            raise kind(*dict.fromkeys(self.problems))
        config = Config(settings, self.layers.recipe, self.registry, parts, losses, self._sources(), self.stage)
        return dataclasses.replace(config, lineage=self.layers.lineage, preset=self.layers.preset)

    def _explain_missing_code(self) -> None:
        """Say first that the run has parts that are not in its config, and leave out what follows from that."""
        made_with = self.layers.made_with
        if made_with.startswith(MADE_WITH) and not self.registry.files:
            hint = "recipes do not load code; pass plugin=FILE again"
            self.problems.insert(0, Problem("recipe", made_with, hint))
        elif MADE_WITH_CLASSES in made_with:
            classes = CLASS_OF_PART.findall(made_with.partition(MADE_WITH_CLASSES)[2])
            missing = [(kind, name) for kind, name in classes if f"{kind} {name}" not in self.registry.given]
            unknown = [f"unknown {kind} {name!r}" for kind, name in missing]
            rest = [each for each in self.problems if not any(words in each.message for words in unknown)]
            if len(rest) < len(self.problems):
                hint = "recipes do not hold code; give the classes again, from Python: parts=[CLASS]"
                self.problems = [Problem("recipe", made_with, hint), *rest]

    def _apply(self, layer: Sequence[Entry]) -> None:
        """Apply a layer: choices first, since they decide which options of lower layers stay."""
        addressed = [(entry, addresses(entry.key)) for entry in layer if not self._gone(entry)]
        for entry, places in addressed:
            for place, option in places:
                if not option:
                    self._choose(place, entry)
        for entry, places in addressed:
            for place, option in places:
                if option:
                    self.options[place][option] = entry
            if not places:
                self._set(entry)

    def _gone(self, entry: Entry) -> bool:
        """Whether this is an option of earlier versions, which must be off."""
        if entry.key not in GONE:
            return False
        off, instead = GONE[entry.key]
        if str(entry.value).strip().lower() != off:
            self.problems.append(Problem(entry.where, "no longer a setting", instead))
        return True

    def _choose(self, place: str, entry: Entry) -> None:
        before = self._choice(place)
        self.choices[place] = entry
        if self._choice(place) != before and not _waits(place, before):
            keeps = SLOTS[place].keeps if place in SLOTS else ()
            self.options[place] = {name: option for name, option in self.options[place].items() if name in keeps}

    def _choice(self, place: str) -> str:
        entry = self.choices.get(place)
        if entry is None:
            return CHOICES[place]
        return NONE if entry.value is None else str(entry.value)

    def _set(self, entry: Entry) -> None:
        key = SHORT.get(entry.key, entry.key)
        if key in setting_options():
            self.settings[key] = entry
        else:
            self.unknown.append(entry)

    def _settings(self) -> Settings:
        tree: dict[str, Any] = {}
        for key, entry in self.settings.items():
            group, _, name = key.rpartition(".")
            try:
                (tree.setdefault(group, {}) if group else tree)[name] = setting_options()[key].convert(entry.value)
            except ValueError as error:
                self.problems.append(Problem(entry.where, str(error), _hint(key, entry.value)))
        defaults = Settings()
        groups = {name: value for name, value in tree.items() if isinstance(value, dict)}
        nested = {name: dataclasses.replace(getattr(defaults, name), **values) for name, values in groups.items()}
        settings = dataclasses.replace(defaults, **(tree | nested))
        for key, deepest in settings.evaluate.too_deep().items():
            reason = f"{deepest} is more than the evaluate.depth={settings.evaluate.depth} labels ranked for a query"
            self.problems.append(Problem(self.settings[key].where, reason, f"set evaluate.depth={deepest}"))
        return settings

    def _part(self, slot: str) -> ChosenPart | None:
        choice = self._choice(slot)
        if choice == NONE and SLOTS[slot].optional:
            self.rejected += self.options[slot].values()
            return None
        if _waits(slot, choice):
            return self._waiting_part(slot)
        if choice == ALL == SLOTS[slot].default:
            names = self._quick(slot)
        else:
            names = [name.strip() for name in choice.split(SEVERAL)] if SLOTS[slot].several else [choice]
        if not names:
            self.rejected += self.options[slot].values()
        found = [part for name in dict.fromkeys(names) if (part := self._one_part(slot, name))]
        return dataclasses.replace(found[0], others=tuple(found[1:])) if found else None

    def _quick(self, slot: str) -> list[str]:
        """Every installed part for the slot but those that train."""

        def trains(name: str) -> bool:
            with contextlib.suppress(PluginError):  # reported when the part is chosen
                return bool(self.registry.get(SLOTS[slot].kind, name).trains)
            return False

        return [name for name in self.registry.names(SLOTS[slot].kind) if not trains(name)]

    def _one_part(self, slot: str, name: str) -> ChosenPart | None:
        found = self._find(slot, name)
        if found is None:
            # The options of an unknown part cannot be checked.
            self.accepted |= {id(entry) for entry in self.options[slot].values()}
            return None
        name, cls = found
        keys = {option: option for option in options_of(cls)}
        if SLOTS[slot].several:
            keys |= {f"{name}.{option}": option for option in keys}  # these come last and win
        entries = self._sort_out(slot, keys, self._explicit(slot))
        values, problems = _read_entries(slot, cls, {keys[key]: entries[key] for key in keys if key in entries})
        self.problems += problems
        if not problems:
            try:
                construct(cls, values, slot)
            except XmclabError as error:
                self._note(error, self.choices.get(slot), slot)
        return ChosenPart(name, cls, values)

    def _waiting_part(self, slot: str) -> ChosenPart:
        """The placeholder of a part chosen later; what was set must suit at least one part of the kind."""
        kind = SLOTS[slot].kind
        given = self.options[slot]
        options = self._options_of_all(kind) if given else {}
        for name, entry in self._sort_out(slot, options, self._explicit(slot)).items():
            try:
                _convert_by_any(options[name], entry.value)
            except ValueError as error:
                self.problems.append(Problem(entry.where, str(error), options[name][0].help))
        values = {name: entry.value for name, entry in given.items()}
        return ChosenPart(AUTO, interface(kind), values, pending=dict(given))

    def _options_of_all(self, kind: str) -> dict[str, list[Option]]:
        """The options of all parts of a kind, by name."""
        options: dict[str, list[Option]] = {}
        for name in self.registry.names(kind):
            with contextlib.suppress(PluginError):  # reported when the part is used
                for option in options_of(self.registry.get(kind, name)).values():
                    options.setdefault(option.name, []).append(option)
        return options

    def _find(self, slot: str, name: str) -> tuple[str, type[Any]] | None:
        """The part for a slot; the closest one if the name is unknown."""
        kind = SLOTS[slot].kind
        try:
            return name, self.registry.get(kind, name)
        except XmclabError as error:
            self._note(error, self.choices.get(slot), slot)
        meant = closest(name, self.registry.names(kind))
        try:
            return (meant, self.registry.get(kind, meant)) if meant else None
        except XmclabError:
            return None

    def _explicit(self, place: str) -> bool:
        """Whether the choice of a place is certain; without the recipe it is not."""
        return not self.layers.recipe_missing or place in self.choices

    def _sort_out(self, place: str, options: Iterable[str], certain: bool) -> dict[str, Entry]:
        """The valid options set for a place; the others are rejected, unless the choice itself is a guess."""
        options = set(options)
        self.known |= {f"{place}.{option}" for option in options if place not in SLOTS or "." not in option}
        known = {option: entry for option, entry in self.options[place].items() if option in options}
        self.rejected += [entry for option, entry in self.options[place].items() if option not in options and certain]
        self.accepted |= {id(entry) for entry in known.values()}
        return known

    def _loss(self, head: str, reduction: ChosenPart | None) -> ChosenLoss:
        from xmclab.host.compose import check_terms

        place = f"loss.{head}"
        entry = self.choices.get(place)
        where = entry.where if entry else place
        expression = self._choice(place)
        try:
            terms = parse_expression(expression, where)
        except ConfigError as error:
            self.problems += error.problems
            self.accepted |= {id(entry) for entry in self.options[place].values()}
            return ChosenLoss(expression, (), {})
        terms, dotted = self._dotted(place, terms)
        # If the reduction itself has problems, the terms are checked under the default one.
        name = reduction.name if reduction else SLOTS[f"reduction.{head}"].default
        options = reduction.options if reduction else {}
        try:
            self.problems += check_terms(terms, name, self.registry.get, options, where)
        except PluginError as error:
            self._note(error, entry, place)
        return ChosenLoss(expression, tuple(terms), dotted)

    def _dotted(self, place: str, terms: Sequence[TermSpec]) -> tuple[list[TermSpec], dict[str, Any]]:
        """The terms with the options that were set by keys such as `loss.clf.bce.weight`."""
        options: dict[str, Option] = {}
        for term in terms:
            try:
                of_loss = options_of(self.registry.get("loss", term.name))
            except XmclabError:
                # check_terms reports it; options set for the term are not a separate problem.
                of_loss = {}
                theirs = [entry for option, entry in self.options[place].items() if below(option, term.name)]
                self.accepted |= {id(entry) for entry in theirs}
            options |= {f"{term.name}.{name}": option for name, option in {**of_loss, "weight": WEIGHT}.items()}
        values: dict[str, Any] = {}
        for key, entry in self._sort_out(place, options, self._explicit(place)).items():
            try:
                values[key] = options[key].convert(entry.value)
            except ValueError as error:
                self.problems.append(Problem(entry.where, str(error), options[key].help))
        return [_with_options(term, values) for term in terms], {k: options[k].dump(v) for k, v in values.items()}

    def _report_unknown(self) -> None:
        unknown = [*self.unknown, *(entry for entry in self.rejected if id(entry) not in self.accepted)]
        if unknown:
            waiting = [slot for slot in SLOTS if _waits(slot, self._choice(slot))]
            self.known |= {f"{slot}.{name}" for slot in waiting for name in self._options_of_all(SLOTS[slot].kind)}
        more = len(unknown) - MOST_UNKNOWN
        for entry in unknown[:MOST_UNKNOWN]:
            places = [place for place, _ in addresses(entry.key)]
            empty = [
                place for place in places if place in SLOTS and self._choice(place) == NONE and SLOTS[place].optional
            ]
            if empty:
                self.problems.append(Problem(entry.where, f"{empty[0]} is none and has no options"))
            else:
                renamed = f"renamed to {RENAMED[entry.key]!r}" if entry.key in RENAMED else ""
                hint = renamed or self._absent_loss(entry.key) or _suggest(entry.key, self.known)
                self.problems.append(Problem(entry.where, "unknown key", hint))
        if more > 0:
            self.problems.append(Problem("", f"... and {more:,} more unknown keys"))

    def _absent_loss(self, key: str) -> str:
        """A hint if a key sets an option of a loss that is not a term of its expressions; otherwise empty."""
        named = [
            (place, name)
            for place, option in addresses(key)
            for name in (self.registry.names("loss") if place not in SLOTS else ())
            if below(option, name)
        ]
        if not named or any(below(known, f"{place}.{name}") for known in self.known for place, name in named):
            return ""
        return f"no term {named[0][1]!r} in {' or '.join(f'{place}={self._choice(place)}' for place, _ in named)}"

    def _note(self, error: XmclabError, entry: Entry | None, place: str = "") -> None:
        where = entry.where if entry else place
        self.problems += [Problem(problem.where or where, problem.message, problem.hint) for problem in error.problems]
        self.plugin_at_fault |= isinstance(error, PluginError)

    def _sources(self) -> dict[str, str]:
        options = {f"{place}.{name}": entry for place, given in self.options.items() for name, entry in given.items()}
        return {key: entry.source for key, entry in (self.settings | self.choices | options).items()}


def _waits(place: str, choice: str) -> bool:
    """Whether this choice leaves a slot open until the data is known."""
    return choice == AUTO and place in SLOTS and SLOTS[place].settled_later


def _read_entries(slot: str, cls: type[Any], given: Mapping[str, Entry]) -> tuple[dict[str, Any], list[Problem]]:
    """All options of a part, converted, and every problem of those given."""
    return read_options(
        cls,
        {option: entry.value for option, entry in given.items()},
        lambda option: given[option].where if option in given else f"{slot}.{option}",
    )


def _convert_by_any(options: Sequence[Option], value: Any) -> None:
    """Raise the first option's `ValueError` if none of the options accepts the value."""
    errors = []
    for option in options:
        try:
            option.convert(value)
        except ValueError as error:
            errors.append(error)
    if len(errors) == len(options):
        raise errors[0]


def _with_options(term: TermSpec, values: Mapping[str, Any]) -> TermSpec:
    mine = {option: value for key, value in values.items() if (option := below(key, term.name))}
    weight = mine.pop("weight", term.weight)
    return dataclasses.replace(term, weight=weight, options={**term.options, **mine})


def _hint(key: str, value: Any) -> str:
    """What to do about a value that a setting does not take."""
    if key == "seed" and "," in str(value):
        return f"a run has one seed; compare several: xmclab bench losses seed={value}"
    return setting_options()[key].help


def _suggest(key: str, known: Iterable[str]) -> str:
    """The key that was probably meant: the same last word elsewhere, a close sibling, or anything close."""
    prefix, _, word = key.rpartition(".")
    known = sorted(known)
    last = {other: other.rpartition(".")[2] for other in known}
    exact = [other for other in known if last[other] == word]
    if 0 < len(exact) <= 4:
        return "did you mean " + " or ".join(map(repr, exact)) + "?"
    neighbours = [other for other in known if other.rpartition(".")[0] == prefix]
    for candidates, cutoff in ((neighbours, 0.6), (known, 0.75)):
        close = closest(word, [last[other] for other in candidates], cutoff)
        if close is not None:
            return f"did you mean {next(other for other in candidates if last[other] == close)!r}?"
    if neighbours:
        return "known: " + ", ".join(neighbours)
    close = closest(key, known)
    if close is not None:
        return f"did you mean {close!r}?"
    return "known: " + ", ".join(sorted({other.partition(".")[0] for other in known}))
