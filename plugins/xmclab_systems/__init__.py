"""The systems that UniDEC is compared with, by name: recipes, the parts that only they need,
and the data sets of the paper as presets."""

from __future__ import annotations

from pathlib import Path

from xmclab import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("head", "label_residual", "xmclab_systems.label_residual:LabelResidual"),
        part("head", "label_clusters", "xmclab_systems.label_clusters:LabelClusters"),
        part("transform", "labels_as_queries", "xmclab_systems.labels_as_queries:LabelsAsQueries"),
        part("transform", "gandalf", "xmclab_systems.gandalf:Gandalf"),
    ]


@hookimpl
def xmclab_recipes() -> dict[str, Path]:
    return {file.stem: file for file in (Path(__file__).parent / "recipes").glob("*.yaml")}


@hookimpl
def xmclab_presets() -> dict[str, Path]:
    return {file.stem: file for file in (Path(__file__).parent / "presets").glob("*.yaml")}
