"""Files before and after training: data sets checked, converted, split (`data`), predictions scored (`score`)."""

from __future__ import annotations

import xmclab


@xmclab.hookimpl
def xmclab_commands() -> list[xmclab.CommandRef]:
    return [
        xmclab.command("data", "xmclab_datatools.cli:app", help="Check, describe, convert and split data sets."),
        xmclab.command("score", "xmclab_datatools.score:score", help="Score the predictions of any program."),
    ]
