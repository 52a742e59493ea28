"""The built-in commands and those of plugins, which are listed by name and imported when used."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry

GROUPS = {  # of `xmclab --help`; commands that it does not name come last
    "Train": ("run", "plan", "replay"),
    "Use a model": ("predict", "eval", "export"),
    "Compare": ("bench", "tune", "report", "score"),
    "Data": ("data", "synthetic"),
    "Parts and recipes": ("parts", "recipes", "presets", "new", "check"),
    "This machine": ("doctor",),
}
MEANT = {"train": "run", "fit": "run", "test": "eval", "evaluate": "eval", "compare": "bench"}  # other programs' words
LABELS_PER_QUERY = {"--k", "--n", "--num", "--top", "--topk", "--top-k", "--top_k", "--limit"}  # all are -k
PLUGIN = "--plugin"
KEYS = "KEY=VALUE"  # the metavar of overrides


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
        if name not in self.commands:
            with contextlib.suppress(ConfigError):  # unknown command: typer reports it with the usage
                command = default_registry().command(name, _as_command)
                return name, command, _with_plugins(command, args[1:])
            if (meant := MEANT.get(name)) and self.get_command(ctx, name) is None:
                ctx.fail(f"No such command {name!r}. Did you mean {meant!r}?")
        found, command, rest = super().resolve_command(ctx, args)
        return found, command, _with_plugins(command, rest)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands in groups, each with its whole summary."""
        left = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        rows = {group: [(name, left.pop(name)) for name in names if name in left] for group, names in GROUPS.items()}
        rows["Others"] = list(left.items())
        widest = max(len(name) for found in rows.values() for name, _ in found)
        for group, found in rows.items():
            if found:
                with formatter.section(group):
                    formatter.write_dl([(name.ljust(widest), summary(command.help or "")) for name, command in found])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; keys that were typed as options are an error that says how to type them."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            command = getattr(getattr(error, "ctx", None), "command", None)
            if command and hasattr(error, "option_name") and any(KEYS in str(each.metavar) for each in command.params):
                from xmclab.cli.keys import meant

                if problems := meant(sys.argv[1:], {name for each in command.params for name in each.opts}):
                    raise ConfigError(*problems) from None
            short = [opt for each in command.params for opt in each.opts if opt == "-k"] if command else []
            if short and getattr(error, "option_name", "") in LABELS_PER_QUERY and hasattr(error, "possibilities"):
                error.possibilities = short
            raise


def summary(help: str) -> str:
    """The first paragraph of a help text, without its example."""
    text = " ".join(help.partition("\n\n")[0].split())
    return re.sub(r": xmclab .*", ".", text)


def _with_plugins(command: Any, words: list[str]) -> list[str]:
    """The words for a command; `plugin=FILE` is spelled alike in all, also in those where it is an option."""
    if command is None or not any(PLUGIN in each.opts for each in command.params):
        return words
    return [each for word in words for each in _plugin_option(word)]


def _plugin_option(word: str) -> list[str]:
    key, equals, file = word.partition("=")
    return [PLUGIN, file] if equals and key == PLUGIN.lstrip("-") else [word]


def _as_command(target: Any) -> Any:
    if isinstance(target, typer.Typer):
        return typer.main.get_command(target)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(target)
    return typer.main.get_command(app)
