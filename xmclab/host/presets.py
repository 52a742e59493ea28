"""Presets: the settings and the sizes of a known data set, and what papers report on it; a YAML file each.

sizes: {train: 294805, test: 134835, labels: 131073}   data of other sizes is refused; may be left out
evaluate: {propensity: [0.6, 2.6]}                     settings, with any recipe
recipes:                                               with a recipe, and with those that build on it
  unidec_paper: {pool: {cap: 3000}}
paper:                                                 recipes -> name of a row -> metrics in percent, and costs
  unidec: {UniDEC: {P@1: 47.80}}
ablation: {...}                                        further results, for the docs

A section may name several recipes: `"dpr, ance": ...`. Small forms and recipes with stages take nothing from sections
of recipes that they build on, and options of a part that a recipe further down replaced are skipped. Comments at line
ends are the sources of the values, as in recipes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xmclab.errors import ConfigError, Problem, XmclabError
from xmclab.host.config import CHOICES, addresses
from xmclab.host.recipes import Entry, Layer, below, group, is_file_name, name_of, read_plain, read_recipe, stage_of
from xmclab.host.registry import Registry
from xmclab.host.schema import NONE

SIZES, RECIPES, PAPER, ABLATION = "sizes", "recipes", "paper", "ablation"
NOT_HERE = ("base", "recipe", "preset", "plugin")
SIZE_NAMES = ("train", "test", "labels")
SMALL_FORMS = "small forms"  # group of the recipes that keep their own numbers

Rows = Mapping[str, Mapping[str, float]]  # name of a row -> metric or cost -> value


@dataclass(frozen=True)
class Preset:
    """What is known of a data set."""

    name: str
    sizes: Mapping[str, int]  # of SIZE_NAMES; empty: unknown
    settings: Sequence[Entry]  # with any recipe
    sections: Mapping[str, Sequence[Entry]]  # with the recipe of that name
    paper: Mapping[str, Rows]  # by recipe

    def layer(self, recipes: Sequence[Layer]) -> list[Entry]:
        """What the preset sets in a recipe, given with its ancestors, oldest first."""
        apart = [at for at, recipe in enumerate(recipes) if _stands_apart(recipe)]
        choices = list(_choices(recipes))
        found = list(self.settings)
        for at in range(max(apart, default=0), len(recipes)):
            section = self.sections.get(recipes[at].name, ())
            own = {place for entry in section for place, option in addresses(entry.key) if not option}
            kept = own | {place for place in CHOICES if choices[at][place] == choices[-1][place]}
            found += [entry for entry in section if _applies(entry, kept)]
        return found


def _stands_apart(recipe: Layer) -> bool:
    return group(recipe.path) == SMALL_FORMS or any(stage_of(entry.key) for entry in recipe.entries)


def _choices(recipes: Sequence[Layer]) -> Iterator[dict[str, str]]:
    """The part or expression of each place, as far as each recipe chose it."""
    chosen = dict(CHOICES)
    for recipe in recipes:
        for entry in recipe.entries:
            for place, option in addresses(entry.key):
                if not option:
                    chosen[place] = NONE if entry.value is None else str(entry.value)
        yield dict(chosen)


def _applies(entry: Entry, kept: set[str]) -> bool:
    places = {place for place, _ in addresses(entry.key)}
    return bool(stage_of(entry.key)) or not places or bool(places & kept)


def find_preset(name: str, registry: Registry) -> Preset:
    """A preset by its name or file.

    Raises:
        ConfigError: unknown, or malformed.
    """
    path = Path(name) if is_file_name(name) else registry.preset(name)
    sections: dict[str, list[Entry]] = {}
    settings = []
    entries = read_recipe(path)
    if strange := [entry for entry in entries if entry.key in NOT_HERE]:
        raise ConfigError(*(Problem(entry.where, "cannot be set in a preset") for entry in strange))
    for entry in entries:
        recipes, _, key = below(entry.key, RECIPES).partition(".")
        if recipes:
            for recipe in recipes.split(","):
                sections.setdefault(recipe.strip(), []).append(replace(entry, key=key))
        elif entry.key.partition(".")[0] not in (SIZES, PAPER, ABLATION):
            settings.append(entry)
    plain = read_plain(path) if entries else {}
    return Preset(name_of(name), _sizes(path, plain), settings, sections, _paper(path, plain))


def _sizes(path: Path, plain: Mapping[str, Any]) -> dict[str, int]:
    sizes = plain.get(SIZES, {})
    if sizes == {} or (
        isinstance(sizes, dict) and set(sizes) == set(SIZE_NAMES) and all(type(size) is int for size in sizes.values())
    ):
        return {name: sizes[name] for name in SIZE_NAMES if sizes}
    expected = f"expected {', '.join(SIZE_NAMES)}, each a whole number"
    raise ConfigError(Problem(f"{path}: {SIZES}", expected, "leave it out if they are unknown"))


def _paper(path: Path, plain: Mapping[str, Any]) -> dict[str, Rows]:
    paper = plain.get(PAPER, {})
    tables = list(paper.values()) if isinstance(paper, dict) else [None]
    rows = [row for rows in tables for row in (rows.values() if isinstance(rows, dict) else [None])]
    if all(isinstance(row, dict) and all(type(x) in (int, float) for x in row.values()) for row in rows):
        return {recipe.strip(): rows for recipes, rows in paper.items() for recipe in recipes.split(",")}
    raise ConfigError(Problem(f"{path}: {PAPER}", "expected numbers", "as `unidec: {UniDEC: {P@1: 47.80}}`"))


def all_presets(registry: Registry) -> list[Preset]:
    """Every preset that can be read; one that cannot is reported when it is used."""
    found = []
    for name in registry.names("preset"):
        with contextlib.suppress(XmclabError):
            found.append(find_preset(name, registry))
    return found


def presets_of_sizes(sizes: Mapping[str, int], name: str, presets: Sequence[Preset]) -> list[Preset]:
    """The presets of these sizes; only that of this name, if there is one among them."""
    found = [preset for preset in presets if preset.sizes and dict(preset.sizes) == dict(sizes)]
    return [preset for preset in found if _letters(preset.name) == _letters(name)] or found


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def rows_of(preset: Preset, lineage: Sequence[str], presets: Sequence[Preset]) -> Rows:
    """What the paper reports of a recipe on a data set.

    Args:
        lineage: the recipe and those that it builds on, nearest first. The first one of which the paper reports
            anything, on any of these data sets, is the system; the rows of its ancestors are those of others.
    """
    known = {recipe for each in (preset, *presets) for recipe in each.paper}
    system = next((name for name in lineage if name in known), "")
    return preset.paper.get(system, {})
