"""One folder of recipes, one hook: the file name is the recipe's."""

from __future__ import annotations

from pathlib import Path

import pytest

import xmclab_unidec
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve

FOLDER = Path(xmclab_unidec.__file__).parent / "recipes"


def test_every_file_is_a_recipe_and_there_are_no_others():
    ours = {c.name: c.origin.plugin for c in default_registry().claims if c.kind == "recipe"}
    assert ours == dict.fromkeys((file.stem for file in FOLDER.iterdir()), "unidec")
    assert {"unidec", "unidec_paper", "unidec_release", "depsl"} <= set(ours)


@pytest.mark.parametrize("name", sorted(xmclab_unidec.xmclab_recipes()))
def test_a_recipe_is_read_from_its_file_and_resolves(name):
    assert default_registry().recipe(name) == FOLDER / f"{name}.yaml"
    assert resolve([f"recipe={name}", "data=tiny"], default_registry()).recipe == name


def test_depsl_is_unidec_without_the_classifier():
    unidec, depsl = (resolve([f"recipe={name}", "data=tiny"], default_registry()) for name in ("unidec", "depsl"))
    assert unidec.parts["head.clf"] is not None
    assert depsl.parts["head.clf"] is None
