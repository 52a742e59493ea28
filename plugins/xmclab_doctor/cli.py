"""`xmclab doctor`: look at the machine and the installation; with --bench, measure them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import Json, note, print_json
from xmclab.errors import ConfigError, Problem

if TYPE_CHECKING:
    from xmclab.host import Registry
    from xmclab_doctor.facts import Machine
    from xmclab_doctor.findings import Finding

# Commands import what they need when they run, so that --help does not wait for torch.
RUNS = Path("runs")


def doctor(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="A run, as for `run`: whether it fits, too (takes as long as `plan`)."
        ),
    ] = None,
    as_json: Json = False,
    bench: Annotated[
        bool, typer.Option("--bench", help="Prove that a card computes what the CPU does, and measure it: minutes.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="With --bench: write the report here, as JSON.")
    ] = None,
) -> None:
    """Check this machine and installation: xmclab doctor

    Exit code 4 if there is a problem: something that a run may ask for would fail, a card that is here cannot be used,
    or (--bench) numbers are not what they must be.
    """
    if bench:
        _bench(overrides, out, as_json)
        return
    if out is not None:
        raise ConfigError(Problem("--out", "is the report of --bench", "add --bench, or redirect --json"))
    from xmclab.host import default_registry
    from xmclab.system.console import Console
    from xmclab_doctor.facts import Machine
    from xmclab_doctor.findings import exit_code
    from xmclab_doctor.show import show

    with contextlib.redirect_stdout(sys.stderr):  # whatever is imported may print; stdout is for results only
        findings = examine(Machine(), default_registry(), overrides or [])
    code = exit_code(findings)
    if as_json:
        print_json({"findings": [finding.document() for finding in findings], "exit_code": code})
    else:
        show(Console(highlight=False), findings)
    if code:
        raise typer.Exit(code)


def _bench(overrides: list[str] | None, out: Path | None, as_json: bool) -> None:
    """The report on stdout, and in a file."""
    if overrides:
        raise ConfigError(Problem(" ".join(overrides), "--bench measures steps of its own", "leave it out"))
    import torch

    from xmclab.system import messages
    from xmclab.system.console import Console
    from xmclab.system.files import new_file
    from xmclab_doctor.bench import report
    from xmclab_doctor.bench.rows import FULL, SMALL
    from xmclab_doctor.bench.show import show
    from xmclab_doctor.findings import SICK

    size = FULL if torch.cuda.is_available() else SMALL
    with contextlib.redirect_stdout(sys.stderr), messages.kept():
        found = report.bench(size, lambda text: print(text, file=sys.stderr, flush=True))
    if out is not None:
        with new_file(out, f"--out {out}") as stream:
            json.dump(found, stream, indent=1)
    print_json(found) if as_json else show(Console(highlight=False), found)
    if out is not None:
        note(f"wrote {out}; it names no machine, person or folder")
    if any(check["passed"] is False for check in found["equality"]):
        raise typer.Exit(SICK)


def examine(machine: Machine, registry: Registry, overrides: Sequence[str] = ()) -> list[Finding]:
    """All findings, in the order in which they are shown."""
    from xmclab_doctor.facts import Bfloat16Trial, TorchFacts, import_torch, torch_facts
    from xmclab_doctor.hardware import choices, hardware
    from xmclab_doctor.software import software
    from xmclab_doctor.surroundings import surroundings

    with Bfloat16Trial(machine.environment) as trial:  # meanwhile, everything else is looked at
        torch, error = import_torch()
        facts = TorchFacts(error=error) if torch is None else torch_facts(torch)
        found = [*software(machine, facts), *surroundings(machine, registry, RUNS)]
        found += hardware(machine, facts, trial.outcome)
    if torch is not None:
        found += choices(facts)
    if overrides and torch is not None:
        from xmclab_doctor.recipe import recipe

        found += recipe(overrides, registry)
    return found
