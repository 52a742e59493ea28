"""Keys as they are typed: completed by the shell, and recognised where they are typed as options. Imports no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args

import typer

from xmclab.errors import PluginError, Problem
from xmclab.host.config import CHOICES, setting_options
from xmclab.host.options import Option, options_of
from xmclab.host.registry import Registry, default_registry
from xmclab.host.schema import AUTO, HEADS, NONE, SHORT, SHORTHANDS, SLOTS

RECIPE = "recipe"
DEFAULT_RECIPE = "unidec"
MOST = 4  # keys that a hint names
FILES = ("plugin", "validate.file", "start")  # keys whose value is a file
LOSS = "loss"


def with_recipe(overrides: Sequence[str], registry: Registry) -> tuple[list[str], str]:
    """The overrides, with the default recipe if they name none; and what to tell the user about that."""
    named = any(word.partition("=")[0].strip() == RECIPE for word in overrides)
    if named or DEFAULT_RECIPE not in registry.names(RECIPE):
        return list(overrides), ""
    return [f"{RECIPE}={DEFAULT_RECIPE}", *overrides], f"no recipe given: {RECIPE}={DEFAULT_RECIPE}"


def meant(words: Sequence[str], options: Iterable[str]) -> list[Problem]:
    """A problem for every key that was typed as an option, such as `--epochs 3`; the first one decides if there is any.

    Args:
        words: what was typed after the command.
        options: those that the command has.
    """
    registry, options, problems = default_registry(), set(options), []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        typed, equals, value = word.partition("=")
        if not typed.startswith("--") or typed in options:
            continue
        separate = not equals and following and not following.startswith("-") and "=" not in following
        value = following if separate else value
        if found := _keys_like(typed[2:].replace("-", "_"), registry):
            hint = " or ".join(f"{key}={value or '...'}" for key in found[:MOST])
            problems.append(Problem(f"{word} {value}" if separate else word, "keys have no dashes", f"use {hint}"))
        elif not problems:
            return []
    return problems


def _keys_like(name: str, registry: Registry) -> list[str]:
    """The keys of this name, or those that end in it: of settings, else of parts, which are imported."""
    for keys in (_keys(), _options_of_parts(registry)):
        if name in keys:
            return [name]
        if found := [key for key in keys if key.rpartition(".")[2] == name]:
            return sorted(found)
    return []


def _keys() -> list[str]:
    """Settings and slots; for keys with a short form, that."""
    long = {*SHORT.values()}
    return sorted({RECIPE, "preset", "plugin", *SHORT, *SHORTHANDS, *CHOICES, *(set(setting_options()) - long)})


def _options_of_parts(registry: Registry) -> list[str]:
    found = []
    for slot in SLOTS:
        for name in registry.names(SLOTS[slot].kind):
            with contextlib.suppress(PluginError):
                found += [f"{slot}.{option}" for option in options_of(registry.get(SLOTS[slot].kind, name))]
    return sorted(set(found))


# Completion. Shells differ in what they hand over: to bash, `=` ends a word, and it replaces what comes after it.


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """What the word that is being typed could become: a key with its `=`, or key=value."""
    args = [*(ctx.params.get("overrides") or ())]
    key, equals, value = incomplete.partition("=")
    if not incomplete and args and args[-1] in _keys():  # bash, right after `recipe=`
        return _values(args[-1], "")
    if not equals and len(args) > 1 and args[-1] == "=":  # bash, after `recipe=uni`
        return _values(args[-2], incomplete)
    if equals:
        return [f"{key}={found}" for found in _values(key, value)]
    keys = [found for found in _keys() if found.startswith(incomplete)]
    if len(keys) == 1:  # with two candidates or more, shells add no blank
        return [f"{keys[0]}=", *(f"{keys[0]}={value}" for value in _values(keys[0], "") or _default(keys[0]))]
    return [f"{key}=" for key in keys]


def complete_kind(incomplete: str) -> list[str]:
    """Kinds of parts."""
    from xmclab.host import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _values(key: str, begun: str) -> list[str]:
    """Values of a key that begin like this: names of parts, recipes, data sets, or the choices of a setting."""
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
        sources[key] = lambda: _choices(setting_options()[key])
    return [name for name in dict.fromkeys(sources.get(key, list)()) if name.startswith(begun)]


def _choices(option: Option) -> list[str]:
    """The values of a setting that has few."""
    if option.type is bool:
        return ["false", "true"]
    return [value for value in get_args(option.type) if isinstance(value, str)]


def _default(key: str) -> list[str]:
    option = setting_options().get(SHORT.get(key, key))
    return [str(option.default)] if option and isinstance(option.default, int | float) else []


def _files(begun: str) -> list[str]:
    folder, slash, name = begun.rpartition("/")
    with contextlib.suppress(OSError):
        found = sorted(Path(folder or ("/" if slash else ".")).iterdir())
        return [f"{folder}{slash}{path.name}{'/' * path.is_dir()}" for path in found if path.name.startswith(name)]
    return []
