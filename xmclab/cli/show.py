"""What the listing commands print."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from xmclab.cli.common import wide_console
from xmclab.host.config import Config
from xmclab.host.registry import OptionInfo, PartInfo, Registry
from xmclab.system.console import plain
from xmclab.system.terminal import shown


def why_document(config: Config) -> list[dict[str, Any]]:
    """`--why` as JSON values."""
    return [{"key": key, "value": value, "source": source} for key, value, source in config.explain()]


def print_why(config: Config) -> None:
    """Print a line per value: key, value, who set it."""
    table = Table(box=None, pad_edge=False)
    for title in ("key", "value", "set by"):
        table.add_column(title)
    for key, value, source in config.explain():
        style = "dim" if source.startswith("default") else ""
        table.add_row(plain(key), plain(str(value)), plain(source), style=style)
    wide_console().print(table)


def print_config(config: Config) -> None:
    """Print the resolved config as YAML, which is a valid recipe."""
    import yaml

    print(shown(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), sys.stdout), end="")


def parts_document(registry: Registry, parts: Sequence[PartInfo]) -> dict[str, Any]:
    """`parts` as JSON values."""
    broken = [dataclasses.asdict(plugin.origin) | {"reason": plugin.reason} for plugin in registry.broken]
    return {
        "parts": [dataclasses.asdict(part) for part in parts],
        "broken": broken,
        "problems": [str(problem) for problem in registry.problems],
    }


def print_parts(registry: Registry, parts: Sequence[PartInfo]) -> None:
    """Print the parts by kind, each with its options; then the problems of plugins."""
    console = wide_console()
    for kind in dict.fromkeys(part.kind for part in parts):
        console.print(f"[bold]{kind}[/bold]")
        for part in parts:
            if part.kind == kind:
                _print_part(console, part)
    for problem in registry.problems:
        console.print(f"[red]problem:[/red] {plain(str(problem))}", soft_wrap=True)


def _print_part(console: Console, part: PartInfo) -> None:
    origin = f"{part.distribution} {part.version}, plugin {part.plugin}"
    head = f"  [bold cyan]{plain(part.name)}[/bold cyan]  {plain(part.summary)}  [dim]({plain(origin)})[/dim]"
    console.print(head, soft_wrap=True)
    if part.problem:
        console.print(f"      [red]problem:[/red] {plain(part.problem)}", soft_wrap=True)
    for option in part.options:
        console.print(f"      {_option_line(option)}", soft_wrap=True)


def _option_line(option: OptionInfo) -> str:
    default = "required" if option.required else f"= {'none' if option.default is None else option.default}"
    bounds = f" [dim]{plain(option.bounds)}[/dim]" if option.bounds else ""
    text = f"  [dim]{plain(option.help)}[/dim]" if option.help else ""
    tuned = f" [dim]\\[tuned: {plain(option.search)}][/dim]" if option.search else ""
    return f"{plain(option.name)}: {plain(option.type)} {plain(default)}{bounds}{text}{tuned}"
