"""Shared by several commands, including those of plugins. Imports no torch, so that --help is fast."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmclab.system.terminal import json_text
from xmclab.system.trust import FLAG

if TYPE_CHECKING:
    from xmclab.host.registry import Registry
    from xmclab.system.console import Console

GROUPS = ("the paper's own", "rivals", "small forms", "variants")  # of recipes, in the order of a listing
WIDE = 200  # columns when stdout is not a terminal: lines stay whole for grep

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or an export.", show_default=False)]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, ...")]
Plugin = Annotated[
    list[str] | None,
    typer.Option("--plugin", hidden=True),  # typed as plugin=FILE, as everywhere
]
Trust = Annotated[bool, typer.Option(FLAG, help="Run the model's own code, for this command, if it has any.")]

DataKeys = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="How the data is read, as for `run`: reader=table reader.labels=tags."),
]
DATA_KEYS = ("data.", "reader=", "reader.")  # `data=` is --data


def print_json(document: Any) -> None:
    print(json_text(document, sys.stdout, indent=1))


def wide_console() -> Console:
    """Stdout, wide when it is not a terminal."""
    from xmclab.system.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def print_files(files: Mapping[str, Path], as_json: bool) -> None:
    """Print YAML files by group and name, each with the comment on its first line."""
    from rich.table import Table

    from xmclab.host.recipes import group, summary
    from xmclab.system.console import plain

    rows = [
        {"name": name, "group": group(path), "summary": summary(path), "path": str(path)}
        for name, path in files.items()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    known = [name for name in GROUPS if name in {row["group"] for row in rows}]
    for name in known + sorted({row["group"] for row in rows} - set(known), key=lambda name: (not name, name)):
        if known:
            table.add_row(f"[bold]{plain(name or 'others')}:[/bold]")
        for row in rows:
            if row["group"] == name:
                table.add_row(f"[bold cyan]{plain(row['name'])}[/bold cyan]", plain(row["summary"]))
    wide_console().print(table)


def note(text: str) -> None:
    """A line on stderr that is not an error."""
    logging.getLogger("xmclab.cli").info("%s", text)


def without_plugins(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The words other than `plugin=FILE`, and the files."""
    files = [word.removeprefix("plugin=") for word in words or () if word.startswith("plugin=")]
    return [word for word in words or () if not word.startswith("plugin=")], files


def data_keys(overrides: Sequence[str] | None, more: Sequence[str] = ()) -> list[str]:
    """Overrides that say how data is read, or begin with one of `more`; others are an error."""
    from xmclab.errors import ConfigError, Problem

    given = list(overrides or ())
    if strange := [word for word in given if not word.startswith((*DATA_KEYS, *more))]:
        hint = "such as reader.text=title+content"
        others = f", {', '.join(key.rstrip('=') for key in more)}" if more else ""
        reason = f"only data.* and reader keys{others} can be set here"
        raise ConfigError(*(Problem(word, reason, hint) for word in strange))
    return given


def registry_with(files: Sequence[str] | None) -> Registry:
    """The installed plugins and those in these files."""
    from xmclab.host.registry import default_registry

    registry = default_registry()
    for file in files or ():
        registry = registry.with_file(file)
    return registry
