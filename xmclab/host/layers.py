"""What was set, layer by layer: base recipes, the recipe, a preset, the overrides of the command line.

A recipe may have stages, trained one after the other in one run folder:

stages:
  phi: {base: ngame_phi}                    keys as anywhere else; `base` names a recipe for this stage alone
  psi: {start: phi, freeze: encoder}        a key outside of `stages` is one of all stages
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from xmclab.errors import PluginError, Problem, XmclabError, closest, did_you_mean
from xmclab.host.presets import Preset, find_preset
from xmclab.host.recipes import (
    BASE,
    STAGES,
    Entry,
    Layer,
    below,
    is_file_name,
    name_of,
    recipe_layers,
    stage_of,
    summary,
)
from xmclab.host.registry import Registry
from xmclab.host.schema import NONE

CUSTOM = "custom"  # what a config without a recipe is called
NOTHING = Entry("recipe", NONE, "default", "recipe")
COMMAND_LINE_ONLY = {  # keys that a recipe cannot set, and what to do instead
    "plugin": "pass plugin=FILE on the command line",
    "recipe": "use `base:` to build on another recipe",
    "preset": "pass preset=NAME on the command line",
}


class Layers:
    """The entries of a command, lowest layer first; collects problems."""

    def __init__(self, overrides: Sequence[str], registry: Registry) -> None:
        self.registry = registry  # with the plugin files of the command
        self.problems: list[Problem] = []
        self.plugin_at_fault = False
        self.recipe, self.recipe_missing, self.made_with = CUSTOM, False, ""
        entries = self._read(overrides)
        for entry in entries:
            if entry.key == "plugin":
                self._load_file(entry)
        last = {entry.key: entry for entry in entries}
        recipes = self._recipe_layers(last["recipe"]) if last.get("recipe", NOTHING).value != NONE else []
        self.lineage = tuple(layer.name for layer in reversed(recipes))
        self.preset = self._preset(last["preset"]) if "preset" in last else None
        layers = [*(layer.entries for layer in recipes), self.preset.layer(recipes) if self.preset else []]
        layers = [[entry for entry in layer if not self._command_line_only(entry)] for layer in layers]
        layers.append([entry for entry in entries if entry.key not in COMMAND_LINE_ONLY])
        known = _stages(layers[: len(recipes)])
        layers[len(recipes) :] = [self._of_known_stages(layer, known) for layer in layers[len(recipes) :]]
        self.entries = [lower for layer in layers for lower in self._with_bases(layer)]
        self.stages = _stages(self.entries)

    def of_stage(self, stage: str = "") -> list[list[Entry]]:
        """The layers of one stage, or of a config without any: in each, its own values beat those of all stages."""
        found = []
        for layer in self.entries:
            found.append([entry for entry in layer if not stage_of(entry.key)])
            mine = [entry for entry in layer if stage and stage_of(entry.key) == stage]
            found.append([dataclasses.replace(entry, key=below(entry.key, f"{STAGES}.{stage}")) for entry in mine])
        return found

    def _read(self, overrides: Sequence[str]) -> list[Entry]:
        entries = []
        for text in overrides:
            key, equals, value = text.partition("=")
            key = key.strip()
            if equals and key:
                entries.append(Entry(key, value, "override", key))
                continue
            hint = f"did you mean recipe={text}?" if text in self.registry.names("recipe") else "such as epochs=20"
            self.problems.append(Problem(text, "expected KEY=VALUE", hint))
        return entries

    def _load_file(self, entry: Entry) -> None:
        try:
            self.registry = self.registry.with_file(str(entry.value))
        except XmclabError as error:
            self._note(error, entry)

    def _preset(self, entry: Entry) -> Preset | None:
        try:
            return find_preset(str(entry.value), self.registry)
        except XmclabError as error:
            self._note(error, entry)
            return None

    def _recipe_layers(self, entry: Entry) -> list[Layer]:
        name = str(entry.value)
        self.recipe = name_of(name)
        self.made_with = summary(Path(name)) if is_file_name(name) else ""
        try:
            return recipe_layers(name, self.registry)
        except XmclabError as error:
            self._note(error, entry)
        # Continue with the closest recipe, so that all problems are reported at once.
        meant = closest(name, self.registry.names("recipe"))
        try:
            return recipe_layers(meant, self.registry) if meant else []
        except XmclabError:
            return []
        finally:
            self.recipe_missing = not meant

    def _with_bases(self, layer: list[Entry]) -> list[list[Entry]]:
        """The layer, above those of the recipes that its stages build on."""
        lower: list[list[Entry]] = []
        bases = {id(entry): stage for entry in layer if (stage := stage_of(entry.key)) and _is_base(entry, stage)}
        for entry in layer:
            if id(entry) not in bases:
                continue
            prefix = f"{STAGES}.{bases[id(entry)]}"
            try:
                found = [base.entries for base in recipe_layers(str(entry.value), self.registry)]
            except XmclabError as error:
                self._note(error, entry)
                continue
            if any(stage_of(each.key) for base in found for each in base):
                self.problems.append(Problem(entry.where, f"recipe {entry.value!r} has stages itself"))
                continue
            lower += [[dataclasses.replace(each, key=f"{prefix}.{each.key}") for each in base] for base in found]
        return [*lower, [entry for entry in layer if id(entry) not in bases]]

    def _of_known_stages(self, layer: list[Entry], known: Sequence[str]) -> list[Entry]:
        """The entries of a preset or the command line, but for those of stages that a recipe with stages lacks."""
        missing = {stage: entry for entry in layer if known and (stage := stage_of(entry.key)) and stage not in known}
        for stage, entry in missing.items():
            self.problems.append(Problem(entry.where, f"no stage {stage!r}", did_you_mean(stage, known)))
        return [entry for entry in layer if stage_of(entry.key) not in missing]

    def _command_line_only(self, entry: Entry) -> bool:
        if entry.key not in COMMAND_LINE_ONLY:
            return False
        self.problems.append(Problem(entry.where, "cannot be set in a recipe", COMMAND_LINE_ONLY[entry.key]))
        return True

    def _note(self, error: XmclabError, entry: Entry) -> None:
        self.problems += [
            Problem(problem.where or entry.where, problem.message, problem.hint) for problem in error.problems
        ]
        self.plugin_at_fault |= isinstance(error, PluginError)


def _stages(layers: Sequence[list[Entry]]) -> tuple[str, ...]:
    """The stages that these layers name, in order."""
    return tuple(dict.fromkeys(stage for layer in layers for entry in layer if (stage := stage_of(entry.key))))


def _is_base(entry: Entry, stage: str) -> bool:
    return entry.key == f"{STAGES}.{stage}.{BASE}"
