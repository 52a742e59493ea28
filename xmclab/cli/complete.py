"""What a word on the command line could become: kinds, keys, and their values. Imports no torch.

Shells differ in what they hand over: to bash, `=` is a word of its own, and it replaces what comes after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import typer

from xmclab.cli.keys import RECIPE, known_keys, with_recipe
from xmclab.errors import XmclabError
from xmclab.host.config import CHOICES, SEVERAL, addresses, setting_options
from xmclab.host.layers import Layers
from xmclab.host.registry import default_registry
from xmclab.host.schema import ALL, AUTO, HEADS, NONE, SHORT, SHORTHANDS, SLOTS
from xmclab.host.sketch import Sketch, sketch
from xmclab.objectives.expr import parse_expression

FILES = ("plugin", "validate.file", "start")  # keys whose value is a file
LOSS = "loss"
WEIGHT = Sketch((), "1.0")  # of any term of a loss


def complete_kind(incomplete: str) -> list[str]:
    """Kinds of parts."""
    from xmclab.host import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """What the word that is being typed could become: a key with its `=`, or key=value."""
    words = _whole(ctx.params.get("overrides") or ())
    before, last = words[:-1], words[-1] if words else ""
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={found}" for found in _values(key, value, words)]
    if last.endswith("="):  # bash, after `recipe=uni`
        return _values(last[:-1], incomplete, before)
    if not incomplete and "=" not in last and (last in known_keys() or last in _options_at(last, before)):
        return _values(last, "", before)  # bash, right after `recipe=`
    options = _options_at(incomplete, words)
    keys = [found for found in (*known_keys(), *options) if found.startswith(incomplete)]
    if len(keys) == 1:  # with two candidates or more, shells add no blank
        [key] = keys
        values = _values(key, "", words) or _default(key, options)
        return [f"{key}=", *(f"{key}={value}" for value in values)]
    return [f"{key}=" for key in keys]


def _whole(words: Sequence[str]) -> list[str]:
    """Overrides as they were typed: `recipe`, `=`, `unidec` are one."""
    found: list[str] = []
    for word in words:
        if found and (word == "=" or found[-1].endswith("=")):
            found[-1] += word
        else:
            found.append(word)
    return found


def _values(key: str, begun: str, overrides: Sequence[str]) -> list[str]:
    """Values of a key that begin like this: names of parts, recipes, data sets, or the words of a choice."""
    if key in FILES:
        return _files(begun)
    registry = default_registry()
    sources: dict[str, Callable[[], Iterable[str]]] = {
        RECIPE: lambda: registry.names(RECIPE),
        "preset": lambda: registry.names("preset"),
        "data": lambda: [*registry.names("dataset"), *_files(begun)],
    }
    place = next(iter(SHORTHANDS.get(key, ())), key)
    if place in SLOTS:
        slot = SLOTS[place]
        extra = [NONE] * slot.optional + [AUTO] * (slot.default == AUTO)
        sources[key] = lambda: [*registry.names(slot.kind), *extra]
    elif place in {f"{LOSS}.{head}" for head in HEADS}:
        head, plus, begun_term = begun.rpartition("+")
        return [f"{head}{plus}{name}" for name in registry.names(LOSS) if name.startswith(begun_term)]
    elif key in setting_options():
        sources[key] = lambda: setting_options()[key].words
    elif option := _options_at(key, overrides).get(key):
        sources[key] = lambda: option.words
    return [name for name in dict.fromkeys(sources.get(key, list)()) if name.startswith(begun)]


def _options_at(begun: str, overrides: Sequence[str]) -> dict[str, Sketch]:
    """By key: the options of the parts that the overrides choose, at the place that the typed key begins with."""
    place = next((place for place in CHOICES if begun.startswith(f"{place}.")), None)
    if place is None:
        return {}
    registry, kind = default_registry(), SLOTS[place].kind if place in SLOTS else LOSS
    found: dict[str, Sketch] = {}
    for name in _chosen(place, overrides):
        with contextlib.suppress(XmclabError):
            options = sketch(registry.target(kind, name))
            if kind == LOSS:
                found |= {f"{place}.{name}.{option}": of for option, of in {"weight": WEIGHT, **options}.items()}
            else:
                found |= {f"{place}.{option}": of for option, of in options.items()}
    return found


def _chosen(place: str, overrides: Sequence[str]) -> list[str]:
    """The names of the parts, or of the terms, at a place; none if it is empty or makes no sense."""
    registry = default_registry()
    words, _ = with_recipe([word for word in overrides if not word.startswith("plugin=")], registry)  # plugins run code
    layers = Layers(words, registry)
    entries = [entry for layer in layers.of_stage(next(reversed(layers.stages), "")) for entry in layer]
    choice = CHOICES[place]
    for entry in entries:
        if (place, "") in addresses(entry.key):
            choice = str(entry.value)
    if place not in SLOTS:
        with contextlib.suppress(XmclabError):
            return [term.name for term in parse_expression(choice)]
        return []
    if choice == SLOTS[place].default and choice in (ALL, AUTO):
        return registry.names(SLOTS[place].kind)
    return choice.split(SEVERAL) if SLOTS[place].several else [choice]


def _default(key: str, options: dict[str, Sketch]) -> list[str]:
    """The default of a setting or an option, if it is a number."""
    long, settings = SHORT.get(key, key), setting_options()
    number = settings[long].number if long in settings else options[key].number if key in options else ""
    return [number] if number else []


def _files(begun: str) -> list[str]:
    folder, slash, name = begun.rpartition("/")
    with contextlib.suppress(OSError):
        found = sorted(Path(folder or ("/" if slash else ".")).iterdir())
        return [f"{folder}{slash}{path.name}{'/' * path.is_dir()}" for path in found if path.name.startswith(name)]
    return []
