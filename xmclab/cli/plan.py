"""`xmclab plan`: what a run will take, before it starts."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import Json, note, print_json, wide_console
from xmclab.cli.complete import complete_override
from xmclab.cli.keys import with_recipe
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve

if TYPE_CHECKING:
    from rich.table import Table

    from xmclab.host.config import Config
    from xmclab.runs.plan import Plan
    from xmclab.runs.sizes import Place
    from xmclab.system.console import Console

log = logging.getLogger("xmclab.cli")


def plan(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="The same as for `run`: recipe=unidec data=debian.",
            autocompletion=complete_override,
        ),
    ] = None,
    as_json: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run folder to come; only its disk is looked at.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="CARD", help="Memory on a card that is not here: a100-80, l4-24, ..."),
    ] = None,
) -> None:
    """Say how much memory, time and disk a run will take: xmclab plan recipe=unidec data=debian"""
    registry = default_registry()
    for problem in registry.problems:
        logging.getLogger("xmclab.host").warning("%s", problem)
    overrides, told = with_recipe(overrides or [], registry)
    config = resolve(overrides, registry)
    if told:
        note(told)
    from xmclab.system.console import Console

    with contextlib.redirect_stdout(sys.stderr):  # parts may print; stdout is for results only
        try:
            console = Console(file=sys.stderr)
            found = {stage: planned(each, console, out, device) for stage, each in stages_of(config).items()}
        except Exception as error:
            if fault := registry.fault_of(error):
                traceback.print_exc()
                raise fault from error
            raise
    *earlier, last = found
    if as_json:
        stages = {name: found[name].document() for name in earlier}
        print_json(found[last].document() | ({"stages": stages} if stages else {}))
    for name, plan in found.items():
        if not as_json:
            print_plan(wide_console(), plan, name)
        for text in plan.warnings:
            log.warning("%s", text)


def planned(config: Config, console: Console, out: Path | None, device: str | None) -> Plan:
    """The plan of a stage, here or on a card."""
    if device is None:
        from xmclab.runs.plan import plan as plan_here

        return plan_here(config, console, out)
    from xmclab.runs.card import card_of, plan_for

    return plan_for(config, card_of(device), console, out)


def stages_of(config: Config) -> dict[str, Config]:
    """The config of every stage of a run, in order: each is planned with new weights."""
    return {**config.earlier, config.stage: config}


def print_plan(console: Console, found: Plan, stage: str = "") -> None:
    """Three tables: memory, time, disk."""
    from xmclab.runs.sizes import size

    data = found.data
    title = f"stage {stage} of {found.recipe}" if stage else found.recipe
    title = f"{title} on {data['name']}: {data['train']} training queries, {data['labels']} labels"
    console.print(f"{title}, {found.epochs} epochs of {found.steps // found.epochs} steps on {found.device}\n")
    places: tuple[Place, ...] = ("host", "device")
    for place in places:
        if found.peak(place):
            console.print(_memory(found, place))
    if found.training:
        console.print(_time(found))
    disk = _table("disk", "")
    for file in found.disk:
        disk.add_row(file.name, size(file.bytes))
    disk.add_row(*_total(found.disk_bytes, found.free["disk"]), style="bold")
    console.print(disk)


def _table(*titles: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number == 1 else "left", no_wrap=True)
    return table


def _memory(found: Plan, place: Place) -> Table:
    """A row per part; those that are not there at the peak are dim."""
    from xmclab.runs.sizes import size

    table = _table("memory" if place == "host" else "memory of the device", "", "held")
    for part in (part for part in found.memory if part.place == place):
        when = "always" if part.phase == "always" else f"in {part.phase}" if part.phase != "start" else "at the start"
        style = "" if found.counts(part) else "dim"
        table.add_row(
            part.name, size(part.bytes), when + ("" if found.counts(part) else ", below the peak"), style=style
        )
    table.add_row(*_total(found.peak(place), found.free[place], "peak"), "", style="bold")
    return table


def _total(number: int, free: int | None, name: str = "total") -> tuple[str, str]:
    from xmclab.runs.sizes import size

    return name if free is None else f"{name} (free: {size(free)})", size(number)


def _time(found: Plan) -> Table:
    table = _table("time", "", "")
    for span in (*found.others[:1], *found.training, *found.others[1:]):
        table.add_row(
            span.name, duration(span.total), f"{span.times} × {duration(span.seconds)}" if span.times > 1 else ""
        )
    table.add_row(
        "training", duration(found.train_seconds), f"{duration(found.train_seconds / found.epochs)} per epoch"
    )
    table.add_row("total", duration(found.total_seconds), style="bold")
    return table


def duration(seconds: float) -> str:
    """Seconds for people: 1 h 05 min."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
