"""The hooks that a plugin may implement. Importing this module is cheap: no torch.

A plugin is a module with functions of these names marked `@xmclab.hookimpl`, registered by an entry point of group
`xmclab` or passed on the command line as `plugin=./file.py`. A function may omit arguments of its hook.
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
    "search",
    "reader",
    "transform",
    "tracker",
    "baseline",
    "kernels",
)
# The built-in commands; plugins cannot use these names.
COMMANDS = ("run", "plan", "predict", "eval", "export", "replay", "parts", "recipes", "presets")


@dataclass(frozen=True)
class PartRef:
    """A named part: its kind, and the class or a lazy `"module:attribute"` reference to it."""

    kind: str
    name: str
    target: type | str
    unusable: str = ""
    always: bool = False


def part(kind: str, name: str, target: type | str = "", *, unusable: str = "", always: bool = False) -> PartRef:
    """Name a part, for `xmclab_parts`: `part("loss", "ds", "xmclab_losses.ds:DecoupledSoftmax")`.

    Args:
        always: for a tracker: every run has it, chosen or not.
        unusable: instead of a target: why a name that users may expect is not available, shown as the error.
    """
    return PartRef(kind, name, target, unusable, always)


@dataclass(frozen=True)
class CommandRef:
    """A named command: the function or `typer.Typer` that runs it, or a lazy `"module:attribute"` reference."""

    name: str
    target: Callable[..., Any] | str
    help: str = ""


def command(name: str, target: Callable[..., Any] | str, *, help: str = "") -> CommandRef:
    """Name a command, for `xmclab_commands`: `command("hello", "my_plugin.cli:hello", help="Say hello.")`.

    Args:
        target: a function, whose parameters typer turns into arguments and options, or a `typer.Typer`.
        help: the line in `xmclab --help`; default for a target that is not lazy: the first line of its docstring.
    """
    lines = "" if isinstance(target, str) else (getattr(target, "__doc__", None) or "").strip()
    return CommandRef(name, target, help or lines.partition("\n")[0])


@hookspec
def xmclab_parts() -> list[PartRef]:  # type: ignore[empty-body]
    """Supply parts, of any kind of `KINDS`: losses, reductions, samplers, miners, encoders, heads, searches, ...

    A target given as `"module:attribute"` is imported only when the part is used, so that listing commands stay fast.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_parts():
        ...     return [xmclab.part("loss", "ds2", "xmclab_losses.ds:DecoupledSoftmax")]
    """


@hookspec
def xmclab_recipes() -> dict[str, Path]:  # type: ignore[empty-body]
    """Supply recipes: names and the YAML files that choose parts and numbers.

    Example:
        >>> import xmclab
        >>> from pathlib import Path
        >>> @xmclab.hookimpl
        ... def xmclab_recipes():
        ...     return {"mine": Path("mine.yaml")}
    """


@hookspec
def xmclab_datasets() -> dict[str, Path]:  # type: ignore[empty-body]
    """Supply data sets: names and the folders that a reader opens for `data=NAME`.

    Example:
        >>> import xmclab
        >>> from pathlib import Path
        >>> @xmclab.hookimpl
        ... def xmclab_datasets():
        ...     return {"ours": Path("ours")}
    """


@hookspec
def xmclab_presets() -> dict[str, Path]:  # type: ignore[empty-body]
    """Supply presets: names of data sets and the YAML files with their settings and sizes, for `preset=NAME`.

    Example:
        >>> import xmclab
        >>> from pathlib import Path
        >>> @xmclab.hookimpl
        ... def xmclab_presets():
        ...     return {"LF-AmazonTitles-131K": Path("LF-AmazonTitles-131K.yaml")}
    """


@hookspec
def xmclab_commands() -> list[CommandRef]:  # type: ignore[empty-body]
    """Supply commands: `xmclab NAME ...`. For installed plugins only, not for `plugin=./file.py`.

    A target given as `"module:attribute"` is imported when the command is used, so that `xmclab --help` stays fast.

    Example:
        >>> import xmclab
        >>> @xmclab.hookimpl
        ... def xmclab_commands():
        ...     return [xmclab.command("hello", "my_plugin.cli:hello", help="Say hello.")]
    """
