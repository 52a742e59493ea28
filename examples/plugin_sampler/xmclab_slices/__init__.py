"""A sampler and a recipe that uses it, as an installable plugin.

`pip install ./examples/plugin_sampler`, then `xmclab run recipe=unidec_slices`, or `sampler=slices` with any recipe.
"""

from __future__ import annotations

from pathlib import Path

import xmclab

xmclab_api = 1  # version of the plugin interface this was written for


@xmclab.hookimpl
def xmclab_parts() -> list[xmclab.PartRef]:
    # A lazy reference keeps `xmclab recipes` fast.
    return [xmclab.part("sampler", "slices", "xmclab_slices.sampler:Slices")]


@xmclab.hookimpl
def xmclab_recipes() -> dict[str, Path]:
    return {"unidec_slices": Path(__file__).parent / "unidec_slices.yaml"}
