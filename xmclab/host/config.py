"""A resolved, read-only config that remembers who set each value, and the keys by which values are set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from xmclab.host.options import Option, construct, options_of
from xmclab.host.recipes import STAGES, Entry, below, stage_of
from xmclab.host.registry import Registry
from xmclab.host.schema import EXPRESSIONS, NONE, SHORT, SHORTHANDS, SLOTS, Settings
from xmclab.objectives.expr import TermSpec

if TYPE_CHECKING:
    from xmclab.host.presets import Preset
    from xmclab.objectives.objective import Objective

SEVERAL = "+"  # between the parts of a slot that takes several
LONG = {long: short for short, long in SHORT.items()}
CHOICES = {slot: slot_.default for slot, slot_ in SLOTS.items()} | EXPRESSIONS


@dataclass(frozen=True)
class ChosenPart:
    """A part in its slot; or `auto`, the placeholder of a part that is not known yet."""

    name: str
    cls: type[Any]  # for auto: the interface
    options: Mapping[str, Any]  # all, converted; for auto: those that were set, as typed
    others: tuple[ChosenPart, ...] = ()  # in the same slot, where it takes several
    pending: Mapping[str, Entry] | None = field(default=None, compare=False)  # for auto: who set the options

    @property
    def all(self) -> tuple[ChosenPart, ...]:
        return (self, *self.others)


@dataclass(frozen=True)
class ChosenLoss:
    """The loss of a head."""

    expression: str  # as written
    terms: tuple[TermSpec, ...]  # with the dotted options applied
    dotted: Mapping[str, Any]  # `bce.weight` -> what was set beside the expression, as a JSON value


@dataclass(frozen=True)
class Config:
    """A resolved config. Everything in it has been checked; `make` and `objective` build what it describes."""

    settings: Settings
    recipe: str
    registry: Registry
    parts: Mapping[str, ChosenPart | None]  # of every slot in use
    losses: Mapping[str, ChosenLoss]  # of every head in use
    sources: Mapping[str, str]  # key -> who set it; keys at their defaults are absent
    stage: str = ""  # its name, where a recipe has stages; the config of such a recipe is that of the last
    earlier: Mapping[str, Config] = field(default_factory=dict)  # the stages before it, by name
    lineage: tuple[str, ...] = ()  # the recipe and those that it builds on, nearest first
    preset: Preset | None = field(default=None, compare=False)

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads in use: `("de", "clf")`, or one of them."""
        return tuple(self.losses)

    def choice(self, slot: str) -> str | None:
        """The name of the part in a slot; None if the slot is empty or unused."""
        part = self.parts.get(slot)
        return None if part is None else SEVERAL.join(each.name for each in part.all)

    def make(self, slot: str) -> Any:
        """A new instance of the part in a slot; None if the slot is empty or unused."""
        return next(iter(self.make_all(slot).values()), None)

    def make_all(self, slot: str) -> dict[str, Any]:
        """New instances of all parts in a slot, by name."""
        part = self.parts.get(slot)
        made = {} if part is None else {each.name: construct(each.cls, each.options, slot) for each in part.all}
        if handed := SLOTS[slot].handed:
            for each in made.values():
                setattr(each, handed, self.make(handed))
        return made

    def data_key(self) -> str:
        """Equal for configs that read the same data the same way."""
        tree = self.to_dict()
        return json.dumps([tree["data"], tree["reader"]], sort_keys=True)

    def with_part(self, slot: str, part: ChosenPart | None) -> Config:
        """The same config with another part in a slot, or none."""
        return dataclasses.replace(self, parts={**self.parts, slot: part})

    def with_option(self, slot: str, name: str, value: Any) -> Config:
        """The same config with another value for an option, already converted."""
        part = self.parts[slot]
        assert part is not None
        return self.with_part(slot, dataclasses.replace(part, options={**part.options, name: value}))

    def objective(self, head: str) -> Objective:
        """What a head minimises, at the head's temperature."""
        from xmclab.host.compose import build_objective

        reduction = self.parts[f"reduction.{head}"]
        assert reduction is not None, "a reduction cannot be none"
        return build_objective(
            self.losses[head].terms,
            reduction.name,
            self.make(f"head.{head}").temperature,
            getattr(self.settings.objective, f"{head}_q2l_share"),
            self.registry.get,
            reduction.options,
            where=f"loss.{head}",
        )

    def options(self) -> dict[str, Option]:
        """Every option that can be set in this config without another choice of parts, by its key."""
        found = dict(setting_options())
        for slot, part in self.parts.items():
            if part is not None and part.pending is None and not part.others:
                found |= {f"{slot}.{name}": option for name, option in options_of(part.cls).items()}
        for head, loss in self.losses.items():
            for term in loss.terms:
                options = options_of(self.registry.get("loss", term.name))
                found |= {f"loss.{head}.{term.name}.{name}": option for name, option in options.items()}
        return found

    def to_dict(self) -> dict[str, Any]:
        """The config as nested JSON values; written as YAML, it is a recipe that resolves to this config again."""
        tree: dict[str, Any] = {}
        for key, value, _ in self.explain():
            node = tree
            *path, last = recipe_key(key).split(".")
            for name in path:
                node = node.setdefault(name, {})
            node[last] = value
        return tree

    def explain(self) -> list[tuple[str, Any, str]]:
        """(key, JSON value, who set it) for every value; those of earlier stages come last."""
        return [*self._explain_settings(), *self._explain_parts(), *self._explain_losses(), *self._explain_stages()]

    def _explain_settings(self) -> Iterable[tuple[str, Any, str]]:
        for key, option in setting_options().items():
            value: Any = self.settings
            for name in key.split("."):
                value = getattr(value, name)
            yield LONG.get(key, key), option.dump(value), self.sources.get(key, "default")

    def _explain_parts(self) -> Iterable[tuple[str, Any, str]]:
        for slot, part in self.parts.items():
            yield slot, self.choice(slot) or NONE, self.sources.get(slot, "default")
            if part is None:
                continue
            if part.pending is None:
                options = _explain_options(slot, part, self.sources)
            else:
                options = ((f"{slot}.{name}", entry.value, entry.source) for name, entry in part.pending.items())
            yield from ((LONG.get(key, key), value, source) for key, value, source in options)

    def _explain_losses(self) -> Iterable[tuple[str, Any, str]]:
        for head, loss in self.losses.items():
            key = f"loss.{head}"
            yield key, loss.expression, self.sources.get(key, "default")
            for name, value in loss.dotted.items():
                yield f"{key}.{name}", value, self.sources[f"{key}.{name}"]

    def _explain_stages(self) -> Iterable[tuple[str, Any, str]]:
        """Everything about the earlier stages, and one value of this one, which names it after them."""
        for name, config in self.earlier.items():
            found = [*config.explain(), *config._unlike(self)]
            yield from ((f"{STAGES}.{name}.{key}", value, source) for key, value, source in found)
        if self.earlier:
            yield f"{STAGES}.{self.stage}.epochs", self.settings.epochs, self.sources.get("epochs", "default")

    def _unlike(self, other: Config) -> Iterable[tuple[str, Any, str]]:
        """Options of the same losses that are set in the other config only, which this one would otherwise inherit."""
        for head, loss in self.losses.items():
            theirs = other.losses.get(head)
            for key in theirs.dotted.keys() - loss.dotted.keys() if theirs else ():
                term = next((term for term in loss.terms if below(key, term.name)), None)
                if term and theirs and theirs.expression == loss.expression:
                    name = below(key, term.name)
                    options = options_of(self.registry.get("loss", term.name))
                    value = term.weight if name == "weight" else term.options.get(name, options[name].default)
                    yield f"loss.{head}.{key}", value, f"default of {term.name}"


def _explain_options(slot: str, part: ChosenPart, sources: Mapping[str, str]) -> Iterable[tuple[str, Any, str]]:
    """The options of the parts in a slot; options on which they differ are listed per part."""
    seen: set[str] = set()
    for each in part.all:
        for name, option in options_of(each.cls).items():
            value = each.options[name]
            shared = all(other.options.get(name, value) == value for other in part.all)
            plain, own = f"{slot}.{name}", f"{slot}.{each.name}.{name}"
            key = plain if shared else own
            if key not in seen:
                yield key, option.dump(value), sources.get(own) or sources.get(plain) or f"default of {each.name}"
            seen.add(key)


@cache
def setting_options() -> Mapping[str, Option]:
    """Every setting by its dotted key."""
    settings: dict[str, Option] = {}
    for name, option in options_of(Settings).items():
        if dataclasses.is_dataclass(option.type):
            settings |= {f"{name}.{inner}": nested for inner, nested in options_of(type(option.default)).items()}
        else:
            settings[name] = option
    return settings


def choice_key(place: str) -> str:
    """The key of a choice beside its options in a recipe."""
    return f"{place}.name" if place in SLOTS else f"{place}.expression"


def recipe_key(key: str) -> str:
    """The nested recipe key for a command-line key."""
    if stage := stage_of(key):
        prefix = f"{STAGES}.{stage}."
        return prefix + recipe_key(key.removeprefix(prefix))
    return SHORT.get(key) or (choice_key(key) if key in CHOICES else key)


def addresses(key: str) -> list[tuple[str, str]]:
    """The (slot or expression, option) pairs a key addresses; empty option: the choice itself; none for a setting."""
    key = SHORT.get(key, key)
    for place in CHOICES:
        if key in (place, choice_key(place)):
            return [(place, "")]
        if option := below(key, place):
            return [(place, option)]
    for short, places in SHORTHANDS.items():
        option = below(key, short)
        if key == short or option:
            return [(place, option) for place in places]
    return []
