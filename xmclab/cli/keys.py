"""Keys as they are typed: taken for options, and the recipe if none is named. Imports no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from xmclab.errors import PluginError, Problem
from xmclab.host.config import CHOICES, setting_options
from xmclab.host.options import options_of
from xmclab.host.registry import Registry, default_registry
from xmclab.host.schema import DEFAULT_RECIPE, SHORT, SHORTHANDS, SLOTS

RECIPE = "recipe"
MOST = 4  # keys that a hint names


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
    for keys in (known_keys(), _options_of_parts(registry)):
        if name in keys:
            return [name]
        if found := [key for key in keys if key.rpartition(".")[2] == name]:
            return sorted(found)
    return []


def known_keys() -> list[str]:
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
