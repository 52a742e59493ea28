"""The systems that UniDEC is compared with, by name: recipes, and the parts that only they need."""

from __future__ import annotations

from pathlib import Path

from xmclab import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("transform", "labels_as_queries", "xmclab_systems.labels_as_queries:LabelsAsQueries"),
        part("transform", "gandalf", "xmclab_systems.gandalf:Gandalf"),
    ]


@hookimpl
def xmclab_recipes() -> dict[str, Path]:
    return {file.stem: file for file in (Path(__file__).parent / "recipes").glob("*.yaml")}
