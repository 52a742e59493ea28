"""Data sets before training: checked, described, converted, split. Command `data`."""

from __future__ import annotations

import xmclab


@xmclab.hookimpl
def xmclab_commands() -> list[xmclab.CommandRef]:
    return [xmclab.command("data", "xmclab_datatools.cli:app", help="Check, describe, convert and split data sets.")]
