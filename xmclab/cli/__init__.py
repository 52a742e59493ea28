"""The command line: `run`, `plan`, `predict`, `eval`, `export`, `replay` and listings; plugins add other commands.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 a bug, 2 usage or config, 3 data, 4 plugin,
5 diverged, 6 out of memory, 7 storage, 129, 130 and 143 stopped by SIGHUP, SIGINT and SIGTERM, 141 stdout was closed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from xmclab import __version__
from xmclab.cli import export, plan, predict, replay
from xmclab.cli.commands import Commands
from xmclab.cli.common import Json, Trust, note, print_files, print_json, registry_with, without_plugins
from xmclab.cli.complete import complete_kind, complete_override
from xmclab.cli.keys import with_recipe
from xmclab.errors import ConfigError, MemoryLimitError, Problem, Stopped, XmclabError
from xmclab.system import messages
from xmclab.system.memory import out_of_memory, what_to_lower
from xmclab.system.signals import Signals
from xmclab.system.terminal import in_lines, printable
from xmclab.system.trust import trusting_remote_code

# Commands import what they need when they run, so that --help does not wait for torch.
app = typer.Typer(
    name="xmclab",
    cls=Commands,
    help="A pluggable loss-and-sampler toolkit for extreme multi-label classification.",
    epilog="plugin=FILE loads a plugin file, in any command. XMCLAB_PLUGINS=a,b loads only these plugins; "
    "XMCLAB_STRICT=1 makes a broken plugin an error.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point, and the one place where errors become messages and exit codes."""
    # Otherwise torch's idle threads spin on the cores that our planner and compiled loops need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _print_utf_8()
    with messages.shown(), Signals():  # SIGTERM ends a command like Ctrl-C: it cleans up after itself
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
        behind = list(_behind(exit_))  # typer makes exits of other exceptions
        if any(isinstance(error, BrokenPipeError) for error in behind[:1]):
            return _stdout_is_gone()
        if interrupts := [error for error in behind if isinstance(error, KeyboardInterrupt)]:
            return _interrupted(interrupts[0])
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except XmclabError as error:
        for problem in error.problems:
            _print_error(problem)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except BrokenPipeError:
        return _stdout_is_gone()
    except Exception as error:
        if interrupts := [each for each in _behind(error) if isinstance(each, KeyboardInterrupt)]:
            return _interrupted(interrupts[0])
        if reason := out_of_memory(error):
            problem = Problem("out of memory", reason, what_to_lower(sys.argv[1:]))
            _print_error(problem)
            return MemoryLimitError.exit_code
        _print_traceback()
        _print_error(f"this is a bug in xmclab {__version__} or in a plugin; please report it with the lines above")
        return 1
    return 0


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The exceptions during whose handling it was raised."""
    while (behind := error.__cause__ or error.__context__) is not None:
        yield behind
        error = behind


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    """Say so in one line; the exit code."""
    if isinstance(interrupt, Stopped):
        print(interrupt, file=sys.stderr)
        return interrupt.exit_code
    print("interrupted", file=sys.stderr)
    return 130


def _print_error(problem: Problem | str) -> None:
    print(in_lines(f"error: {printable(str(problem))}", sys.stderr), file=sys.stderr)


def _print_traceback() -> None:
    print(printable(traceback.format_exc(), lines=True), end="", file=sys.stderr)


def _print_utf_8() -> None:
    """Let any text be printed in any locale, encoded as in the files that are written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


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
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Overrides: recipe=unidec loss.clf=ds+bce.", autocompletion=complete_override
        ),
    ] = None,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder, new or empty.")] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Continue this run; auto: that of --out, or start it."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict-resume", help="Refuse a damaged checkpoint; use no older one instead.")
    ] = False,
    why: Annotated[bool, typer.Option("--why", help="Print every value and who set it; do not train.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the config; do not train.")] = False,
    trust: Trust = False,
) -> None:
    """Train and evaluate: xmclab run recipe=unidec loss.clf=ds+bce data=debian

    Continue a run that was stopped or killed: xmclab run --resume runs/my-run
    """
    from xmclab.cli import show
    from xmclab.host.registry import default_registry
    from xmclab.host.resolver import resolve
    from xmclab.system.console import Console
    from xmclab.system.progress import working

    overrides = list(overrides or ())
    if resume and resume != AUTO:
        overrides, out = _continued(Path(resume), overrides, out)
    elif resume and out is None:
        raise ConfigError(Problem("--resume auto", "needs --out DIR, the folder of the run"))
    registry = default_registry()
    for problem in registry.problems:
        logging.getLogger("xmclab.host").warning("%s", problem)
    overrides, told = with_recipe(overrides, registry)
    with working(Console(file=sys.stderr), "starting"):
        config = resolve(overrides, registry)
        if not (why or dry_run):
            import xmclab.runs.run  # noqa: F401  # torch takes seconds
    if told:
        note(told)
    if why:
        print_json(show.why_document(config)) if as_json else show.print_why(config)
    elif dry_run:
        print_json(config.to_dict()) if as_json else show.print_config(config)
    else:
        with trusting_remote_code(trust):
            _train(config, out, as_json, bool(resume), strict)


AUTO = "auto"


def _continued(run: Path, overrides: list[str], out: Path | None) -> tuple[list[str], Path]:
    """The overrides and the folder of a run that is continued."""
    from xmclab.runs.resume import overrides_of

    if out is not None and out != run:
        raise ConfigError(Problem(f"--out {out}", f"the run goes on in {run}", "leave it out"))
    if given := [word for word in overrides if word.startswith("recipe=")]:
        raise ConfigError(Problem(given[0], f"the recipe is that of {run}", "leave it out"))
    return [*overrides_of(run), *overrides], run


def _train(config: Any, out: Path | None, as_json: bool, resume: bool, strict: bool) -> None:
    from xmclab.runs.run import print_result
    from xmclab.runs.run import run as train
    from xmclab.system.console import Console

    # Parts may print; stdout is for results only.
    with contextlib.redirect_stdout(sys.stderr), Signals() as signals:
        try:
            console = Console(file=sys.stderr)
            result = train(config, out, console, resume=resume, strict=strict, signals=signals)
        except Exception as error:
            if fault := config.registry.fault_of(error):
                _print_traceback()
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
app.command()(replay.replay)


@app.command()
def parts(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND] [plugin=FILE]", help="Only this kind: loss, sampler, ...", autocompletion=complete_kind
        ),
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


Files = Annotated[list[str] | None, typer.Argument(metavar="[plugin=FILE]")]


@app.command()
def recipes(words: Files = None, as_json: Json = False) -> None:
    """List the recipes, for recipe=NAME."""
    registry = _registry_of(words)
    print_files({name: registry.recipe(name) for name in registry.names("recipe")}, as_json)


@app.command()
def presets(words: Files = None, as_json: Json = False) -> None:
    """List the data sets whose settings are known, for preset=NAME."""
    registry = _registry_of(words)
    print_files({name: registry.preset(name) for name in registry.names("preset")}, as_json)


def _registry_of(words: list[str] | None) -> Any:
    """The installed plugins and those of `plugin=FILE`, the only words that may be given."""
    others, files = without_plugins(words)
    if others:
        raise typer.BadParameter(f"expected only plugin=FILE, not {' '.join(others)}")
    return registry_with(files)
