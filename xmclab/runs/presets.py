"""A run on a data set that a preset describes: its sizes, a hint, and the paper's results beside ours."""

from __future__ import annotations

from typing import Any

from xmclab.api import Dataset
from xmclab.errors import DataError, Problem
from xmclab.host.config import Config
from xmclab.host.presets import Rows, all_presets, presets_of_sizes, rows_of
from xmclab.host.recipes import recipe_layers


def sizes_of(data: Dataset) -> dict[str, int]:
    """The sizes of a data set, as presets state them."""
    return {"train": len(data.train), "test": len(data.test), "labels": data.num_labels}


def refuse_other_sizes(config: Config, data: Dataset) -> None:
    """Refuse data that is not the data set of the preset.

    Raises:
        DataError: its sizes differ.
    """
    preset = config.preset
    if preset is None or not preset.sizes or preset.sizes == sizes_of(data):
        return
    theirs, ours = (
        f"{sizes['train']:,} training queries, {sizes['test']:,} test queries and {sizes['labels']:,} labels"
        for sizes in (preset.sizes, sizes_of(data))
    )
    hint = f"pass data=FOLDER with {preset.name}, or leave out preset="
    raise DataError(Problem(f"preset={preset.name}", f"{preset.name} has {theirs}; {data.name} has {ours}", hint))


def suggestion(config: Config, data: Dataset) -> str:
    """That there is a preset for the data, if the run has none; empty if there is not."""
    if config.preset:
        return ""
    found = presets_of_sizes(sizes_of(data), data.name, all_presets(config.registry))
    names, keys = (" or ".join(f"{key}{preset.name}" for preset in found) for key in ("", "preset="))
    return f"these are the sizes of {names}: {keys} uses its settings" if found else ""


def results(config: Config, data: Dataset) -> dict[str, Any]:
    """For the result of a run: the name of its preset, and the paper's rows of this recipe on this data."""
    presets = all_presets(config.registry)
    found = [config.preset] if config.preset else presets_of_sizes(sizes_of(data), data.name, presets)
    lineage = config.lineage
    if config.recipe not in lineage and config.recipe in config.registry.names("recipe"):  # of a resumed run
        lineage = tuple(layer.name for layer in reversed(recipe_layers(config.recipe, config.registry)))
    rows: dict[str, Rows] = {preset.name: rows_of(preset, lineage, presets) for preset in found}
    named = {
        f"{title}, {name} (paper)" if len(found) > 1 else f"{title} (paper)": dict(row)
        for name, table in rows.items()
        for title, row in table.items()
    }
    return ({"preset": config.preset.name} if config.preset else {}) | ({"paper": named} if named else {})
