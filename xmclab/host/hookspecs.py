"""The hooks that a plugin may implement. Importing this module is cheap: no torch.

A plugin is a module with functions of these names marked `@xmclab.hookimpl`, made known by an entry point of
group `xmclab`, or given on the command line as `plugin=./file.py`. A function may leave out arguments of its hook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pluggy

PROJECT = "xmclab"
API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

KINDS = (
    "encoder",
    "head",
    "sampler",
    "miner",
    "reduction",
    "loss",
    "index",
    "reader",
    "tracker",
    "baseline",
)
# The built-in commands, whose names no plugin may take.
COMMANDS = ("run", "predict", "eval", "score", "export", "parts", "recipes")


@dataclass(frozen=True)
class PartRef:
    """A part under a name: its kind, and the class or a lazy `"module:attribute"` reference to it."""

    kind: str
    name: str
    target: type | str
    unusable: str = ""
    always: bool = False


def part(kind: str, name: str, target: type | str = "", *, unusable: str = "", always: bool = False) -> PartRef:
    """Name a part, for `xmclab_parts`: `part("loss", "ds", "xmclab_losses.ds:DecoupledSoftmax")`.

    Args:
        always: of a tracker, that every run has it, chosen or not.
        unusable: in place of a target, why a name that users may expect cannot be had: what they are told.
    """
    return PartRef(kind, name, target, unusable, always)


@dataclass(frozen=True)
class CommandRef:
    """A command under a name: the function or `typer.Typer` that runs it, or a lazy `"module:attribute"` reference."""

    name: str
    target: Callable[..., Any] | str
    help: str = ""


def command(name: str, target: Callable[..., Any] | str, *, help: str = "") -> CommandRef:
    """Name a command, for `xmclab_commands`: `command("hello", "my_plugin.cli:hello", help="Say hello.")`.

    Args:
        target: its arguments and options are those of the function, as typer reads them.
        help: the line in `xmclab --help`; of a target that is not lazy, the first line of its docstring by default.
    """
    lines = "" if isinstance(target, str) else (getattr(target, "__doc__", None) or "").strip()
    return CommandRef(name, target, help or lines.partition("\n")[0])


@hookspec
def xmclab_parts() -> list[PartRef]:  # type: ignore[empty-body]
    """Supply parts: losses, reductions, samplers, miners, encoders, heads, indexes, readers, trackers, baselines.

    A target given as `"module:attribute"` is imported only when the part is used, so that listing commands stay fast.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_parts():
        ...     return [xmclab.part("loss", "ds2", "xmclab_losses.ds:DecoupledSoftmax")]
    """


@hookspec
def xmclab_recipes() -> dict[str, Path]:  # type: ignore[empty-body]
    """Supply recipes: a name and the YAML file that chooses parts and numbers.

    Example:
        >>> import xmclab
        >>> from pathlib import Path
        >>> @xmclab.hookimpl
        ... def xmclab_recipes():
        ...     return {"mine": Path("mine.yaml")}
    """


@hookspec
def xmclab_datasets() -> dict[str, Path]:  # type: ignore[empty-body]
    """Supply data sets by name: each the folder that a reader opens for `data=NAME`.

    Example:
        >>> import xmclab
        >>> from pathlib import Path
        >>> @xmclab.hookimpl
        ... def xmclab_datasets():
        ...     return {"ours": Path("ours")}
    """


@hookspec
def xmclab_commands() -> list[CommandRef]:  # type: ignore[empty-body]
    """Supply commands for the command line: `xmclab NAME ...`. Of installed plugins only, not of `plugin=./file.py`.

    A target given as `"module:attribute"` is imported when the command is used, so that `xmclab --help` stays fast.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_commands():
        ...     return [xmclab.command("hello", "my_plugin.cli:hello", help="Say hello.")]
    """
