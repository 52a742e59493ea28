"""Comparisons: a declaration in, trained cells, statistics and reports out; tuning; and made-up data of any size."""

from __future__ import annotations

import xmclab


@xmclab.hookimpl
def xmclab_commands() -> list[xmclab.CommandRef]:
    compare = "Compare: train every cell of a spec, test the differences, write tables and a page."
    show = "Show runs side by side, or make the page of a comparison from its document.json."
    return [
        xmclab.command("bench", "xmclab_bench.cli:bench", help=compare),
        xmclab.command("report", "xmclab_bench.cli:report", help=show),
        xmclab.command("tune", "xmclab_bench.tune_cli:tune", help="Search the best settings on validation queries."),
        xmclab.command("synthetic", "xmclab_bench.cli:synthetic", help="Make up a data set of any size."),
    ]
