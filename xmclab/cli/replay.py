"""`xmclab replay`: one step of a run again, to see why it was not finite."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from xmclab.cli.common import Json, print_json, registry_with, without_plugins
from xmclab.errors import DivergedError


def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a checkpoint.", show_default=False)],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="plugin=FILE, device=cpu, encode.chunk=64, ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """Repeat the step after the newest checkpoint, without an update: xmclab replay runs/my-run"""
    from xmclab.host.resolver import resolve
    from xmclab.runs.replay import replay as repeat
    from xmclab.runs.resume import overrides_of
    from xmclab.system.console import Console

    overrides, files = without_plugins(words)
    with contextlib.redirect_stdout(sys.stderr):
        config = resolve([*overrides_of(folder), *overrides], registry_with(files))
        found = repeat(folder, config, Console(file=sys.stderr))
    if as_json:
        print_json({"step": found.step, "record": found.record, "scores": found.scores})
    else:
        print(f"step {found.step}")
        for name, value in {**found.record.get("values", {}), **found.record.get("terms", {})}.items():
            print(f"  {name}: {value}")
        for name, (low, high) in found.scores.items():
            print(f"  scores of {name}: {low:.4g} to {high:.4g}")
    if found.problems:
        raise DivergedError(*found.problems)
