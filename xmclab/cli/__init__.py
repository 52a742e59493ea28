"""The command line: `xmclab run`, `plan`, `predict`, `eval`, `export`, `parts`, `recipes`; plugins add others.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 a bug, 2 usage or config, 3 data, 4 plugin,
5 diverged, 6 out of memory, 7 storage, 130 interrupted, 141 stdout was closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from xmclab import __version__
from xmclab.cli import export, plan, predict
from xmclab.cli.commands import Commands
from xmclab.cli.common import Json, print_files, print_json, registry_with, without_plugins
from xmclab.errors import XmclabError
from xmclab.system import messages

# Commands import what they need when they run, so that --help does not wait for torch.
app = typer.Typer(
    name="xmclab",
    cls=Commands,
    help="A pluggable loss-and-sampler toolkit for extreme multi-label classification.",
    epilog="XMCLAB_PLUGINS=a,b loads only these plugins; XMCLAB_STRICT=1 makes a broken plugin an error.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point, and the one place where errors become messages and exit codes."""
    # Otherwise torch's idle threads spin on the cores that our planner and compiled loops need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with messages.shown():
        code = _run_app()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _stdout_is_gone()
    sys.exit(code)


def _run_app() -> int:
    try:
        app()
    except SystemExit as exit_:
        if isinstance(exit_.__context__, BrokenPipeError):  # typer would exit with 1, which here means a bug
            return _stdout_is_gone()
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except XmclabError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _stdout_is_gone()
    except Exception:
        traceback.print_exc()
        print(
            f"error: this is a bug in xmclab {__version__} or in a plugin; please report it with the lines above",
            file=sys.stderr,
        )
        return 1
    return 0


def _stdout_is_gone() -> int:
    """The exit code for it; discards what is still to be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 141


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"xmclab {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides: recipe=unidec loss.clf=ds+bce.")
    ] = None,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder, new or empty.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Print every value and who set it; do not train.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the config; do not train.")] = False,
) -> None:
    """Train and evaluate: xmclab run recipe=unidec loss.clf=ds+bce data=debian"""
    from xmclab.cli import show
    from xmclab.host.registry import default_registry
    from xmclab.host.resolver import resolve

    registry = default_registry()
    for problem in registry.problems:
        logging.getLogger("xmclab.host").warning("%s", problem)
    config = resolve(overrides or [], registry)
    if why:
        print_json(show.why_document(config)) if as_json else show.print_why(config)
    elif dry_run:
        print_json(config.to_dict()) if as_json else show.print_config(config)
    else:
        _train(config, out, as_json)


def _train(config: Any, out: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from xmclab.runs.run import print_result
    from xmclab.runs.run import run as train

    # Parts may print; stdout is for results only.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            result = train(config, out, Console(file=sys.stderr))
        except Exception as error:
            if fault := config.registry.fault_of(error):
                traceback.print_exc()
                raise fault from error
            raise
    if as_json:
        print_json(result.document)
    else:
        print_result(Console(), result)


app.command()(plan.plan)
app.command()(predict.predict)
app.command("eval")(predict.evaluate)
app.command()(export.export)


@app.command()
def parts(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND] [plugin=FILE]", help="Only this kind: loss, sampler, ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the parts, with their options and the plugin each comes from."""
    from xmclab.cli import show

    kinds, files = without_plugins(words)
    if len(kinds) > 1:
        raise typer.BadParameter(f"expected one kind, not {' '.join(kinds)}")
    registry = registry_with(files)
    found = registry.describe(*kinds)
    print_json(show.parts_document(registry, found)) if as_json else show.print_parts(registry, found)


@app.command()
def recipes(
    words: Annotated[list[str] | None, typer.Argument(metavar="[plugin=FILE]")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, for recipe=NAME."""
    others, files = without_plugins(words)
    if others:
        raise typer.BadParameter(f"expected only plugin=FILE, not {' '.join(others)}")
    registry = registry_with(files)
    print_files({name: registry.recipe(name) for name in registry.names("recipe")}, as_json)
