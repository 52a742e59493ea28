"""Plugin commands beside the built-in ones: listed by name, imported when used."""

from __future__ import annotations

import logging
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry


class Commands(TyperGroup):
    """The built-in commands, which need no plugin, and those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        registry = default_registry()
        for problem in registry.problems:
            logging.getLogger("xmclab.host").warning("%s", problem)
        return [*super().list_commands(ctx), *registry.commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; for a plugin's, only its name and help, for listings."""
        if (built_in := super().get_command(ctx, cmd_name)) is not None:
            return built_in
        help = default_registry().commands().get(cmd_name)
        return None if help is None else TyperCommand(cmd_name, help=help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in self.commands:
            return super().resolve_command(ctx, args)
        try:
            return name, default_registry().command(name, _as_command), args[1:]
        except ConfigError:  # unknown command: typer reports it with the usage
            return super().resolve_command(ctx, args)


def _as_command(target: Any) -> Any:
    if isinstance(target, typer.Typer):
        return typer.main.get_command(target)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(target)
    return typer.main.get_command(app)
