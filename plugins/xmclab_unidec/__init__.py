"""UniDEC: a dual encoder and per-label classifiers trained together on one pool; DePSL: its dual encoder alone.

Both by Kharbanda et al., WWW 2025.
"""

from __future__ import annotations

from pathlib import Path

from xmclab import hookimpl


@hookimpl
def xmclab_recipes() -> dict[str, Path]:
    return {file.stem: file for file in (Path(__file__).parent / "recipes").glob("*.yaml")}
