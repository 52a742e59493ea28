"""Whether a run fits: the memory that `xmclab plan` predicts, and how many texts can be encoded at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from xmclab.errors import MemoryLimitError, XmclabError
from xmclab.host import Registry, resolve
from xmclab_doctor.findings import Finding, note, ok, problem

if TYPE_CHECKING:
    from xmclab.host import Config
    from xmclab.runs.plan import Plan
    from xmclab.runs.sizes import Place

CHUNK = "encode.chunk"
SPARE = 0.9  # of what is free; an allocator cannot use all of it
SMALLEST = 8  # texts; with fewer at once, others must be lowered


def recipe(overrides: Sequence[str], registry: Registry) -> Iterator[Finding]:
    """Findings about a run, from the overrides that it would be started with."""
    try:
        config = resolve(overrides, registry)
        config.make("index")  # which may need a package
        try:
            yield from fit(planned(config), config)
        except MemoryLimitError as error:
            yield from in_chunks(error, config, [*overrides, f"{CHUNK}=auto"], registry)
    except XmclabError as error:
        yield from (
            problem("run", each.where, each.message, "the run does not start", each.hint) for each in error.problems
        )


def in_chunks(
    error: MemoryLimitError, config: Config, overrides: Sequence[str], registry: Registry
) -> Iterator[Finding]:
    """What a rehearsal that ran out of memory needs: the chunk that `auto` finds, unless one was set."""
    if config.settings.encode.chunk == 0:
        with contextlib.suppress(MemoryLimitError):
            chunk = planned(resolve(overrides, registry)).texts_at_once
            why = f"steps fit with {chunk} texts at once, and gradients stay exact"
            yield note("run", "memory", error.problems[0].message, why, f"{CHUNK}={chunk}, or {CHUNK}=auto")
            return
    yield from (problem("run", each.where, each.message, "the run stops", each.hint) for each in error.problems)


def planned(config: Config) -> Plan:
    """What the last stage of a run takes."""
    from xmclab.runs.plan import plan

    return plan(config)


def fit(plan: Plan, config: Config) -> Iterator[Finding]:
    """Peaks beside what is free, and the chunk that fits."""
    from xmclab.runs.sizes import size

    places: tuple[Place, ...] = ("host", "device")
    for place in places:
        peak, free = plan.peak(place), plan.free[place]
        if not peak:
            continue
        name = "memory" if place == "host" else "memory of the card"
        what = f"a peak of {size(peak)} is predicted" + ("" if free is None else f", {size(free)} is free")
        if free is None or peak <= free * SPARE:
            yield ok("run", name, what, f"{CHUNK}={config.settings.encode.chunk} fits")
            continue
        chunk = fitting_chunk(plan, place)
        why = "the run may end for lack of memory"
        if chunk:
            yield note("run", name, what, why, f"{CHUNK}={chunk} (gradients stay exact), or {CHUNK}=auto")
        else:
            advice = " ".join(plan.warnings) or "see `xmclab plan`"
            yield problem("run", name, what, why, advice)


def fitting_chunk(plan: Plan, place: Place) -> int:
    """The texts that can be encoded at once, as activations grow with their number; 0: no number helps.

    A power of two below what is computed.
    """
    free = plan.free[place]
    activations = sum(part.bytes for part in plan.memory if part.place == place and part.name == "activations")
    texts = plan.texts_at_once
    if free is None or not activations or not texts:
        return 0
    fitting = texts * (free * SPARE - (plan.peak(place) - activations)) / activations
    return 1 << (int(fitting).bit_length() - 1) if fitting >= SMALLEST else 0
