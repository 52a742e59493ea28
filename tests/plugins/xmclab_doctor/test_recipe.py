"""Whether a run fits, by what `xmclab plan` says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace as Of

import pytest

from xmclab.errors import MemoryLimitError, Problem
from xmclab.host import Config, default_registry
from xmclab.runs.plan import Plan
from xmclab.runs.sizes import Part
from xmclab_doctor import recipe as module
from xmclab_doctor.findings import Finding
from xmclab_doctor.recipe import fit, recipe

MIB = 1024**2
SMALL = ["recipe=unidec", "data=tiny"]


def planned(free: int, activations: int, place: str = "device", texts: int = 3000) -> Plan:
    """A plan with 100 MiB of weights, and activations of so many MiB for so many texts."""
    parts = [Part("weights", 100 * MIB, place), Part("activations", activations * MIB, place, "training")]  # type: ignore[arg-type]
    room: dict[str, int | None] = {"host": 4000 * MIB, "device": None, "disk": None}
    numbers = {"recipe": "r", "data": {}, "device": "cuda", "epochs": 1, "steps": 1, "training": (), "others": ()}
    return Plan(
        **numbers,  # type: ignore[arg-type]
        memory=tuple(parts),
        free=room | {place: free * MIB},
        disk=(),
        folder=Path("runs"),
        warnings=("lower head.clf.dim",),
        texts_at_once=texts,
    )


def one(plan: Plan) -> Finding:
    config = Of(settings=Of(encode=Of(chunk=0)))
    [found] = fit(plan, config)  # type: ignore[arg-type]
    return found


def test_a_run_that_fits_says_so() -> None:
    found = one(planned(free=2000, activations=1000))
    assert (found.status, found.what) == ("ok", "a peak of 1.07 GiB is predicted, 1.95 GiB is free")
    assert found.why == "encode.chunk=0 fits"


def test_the_chunk_that_fits_is_the_power_of_two_below_the_room_there_is() -> None:
    found = one(planned(free=1000, activations=3000))
    assert found.status == "note"
    assert found.fix.startswith("encode.chunk=512 ")  # 800 MiB at a MiB a text


def test_a_run_that_no_chunk_makes_fit_is_a_problem() -> None:
    found = one(planned(free=105, activations=3000))
    assert (found.status, found.fix) == ("problem", "lower head.clf.dim")


def test_the_plan_is_that_of_xmclab_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Config] = []

    def plan(config: Config) -> Plan:
        asked.append(config)
        return planned(free=1000, activations=3000)

    monkeypatch.setattr("xmclab.runs.plan.plan", plan)
    found = list(recipe([*SMALL, "sampler.batch_size=256"], default_registry()))
    assert [(each.area, each.name, each.status) for each in found] == [("run", "memory of the card", "note")]
    assert asked[0].recipe == "unidec"


def test_what_stops_a_run_is_a_problem_with_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = recipe(["recipe=unidex"], default_registry())
    assert (found.status, "unidec" in found.fix) == ("problem", True)

    monkeypatch.setitem(sys.modules, "faiss", None)  # as if it were not installed
    [found] = recipe([*SMALL, "index=faiss"], default_registry())
    assert (found.status, found.name, found.fix) == ("problem", "index faiss", 'pip install "xmclab[cpu]"')

    def too_large(config: Config) -> Plan:
        raise MemoryLimitError(Problem("out of memory", "the heads alone need 1 TiB", "lower head.clf.dim"))

    monkeypatch.setattr(module, "planned", too_large)
    [found] = recipe(SMALL, default_registry())
    assert (found.status, found.what) == ("problem", "the heads alone need 1 TiB")


def test_a_rehearsal_that_runs_out_of_memory_finds_the_chunk_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(config: Config) -> Plan:
        if config.settings.encode.chunk != "auto":
            raise MemoryLimitError(Problem("out of memory", "CUDA out of memory", "lower encode.chunk"))
        return planned(free=1000, activations=500, texts=750)

    monkeypatch.setattr(module, "planned", out_of_memory)
    [found] = recipe(SMALL, default_registry())
    assert (found.status, found.what, found.fix) == (
        "note",
        "CUDA out of memory",
        "encode.chunk=750, or encode.chunk=auto",
    )
    [found] = recipe([*SMALL, "encode.chunk=64"], default_registry())
    assert (found.status, found.fix) == ("problem", "lower encode.chunk")
