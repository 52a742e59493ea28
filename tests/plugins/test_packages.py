"""Every package of `plugins/` is in the wheel and behind an entry point of its own."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import xmclab_losses
import xmclab_systems
import xmclab_unidec

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = {file.parent.name for file in (ROOT / "plugins").glob("*/__init__.py")}


def test_the_wheel_has_every_package_and_nothing_that_is_gone() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(wheel) == sorted(["xmclab", *(f"plugins/{name}" for name in PACKAGES)])


def test_an_entry_point_is_named_after_its_package() -> None:
    points = PROJECT["project"]["entry-points"]["xmclab"]
    assert points == {"core": "xmclab.host.builtin"} | {name.removeprefix("xmclab_"): name for name in PACKAGES}


def test_an_installed_wheel_has_every_loss_and_recipe(clean_environment: Any, tmp_path: Path) -> None:
    code = (
        "from xmclab.host.registry import default_registry as r\n"
        "print(*(n for n in r().names('loss') if r().get('loss', n) and '.' not in n))\n"
        "print(*(n for n in r().names('recipe') if r().recipe(n).is_file()))\n"
    )
    losses, recipes = clean_environment.run("python", "-c", code, cwd=tmp_path)[0].splitlines()
    assert set(losses.split()) == {ref.name for ref in xmclab_losses.xmclab_parts()}
    assert set(recipes.split()) == {*xmclab_unidec.xmclab_recipes(), *xmclab_systems.xmclab_recipes()}
