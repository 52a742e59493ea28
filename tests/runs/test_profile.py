"""A profile says where the time of a run goes, and changes none of its numbers."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.profile import BESIDE_STEPS, BETWEEN_STEPS, OF_A_STEP, PLAN_WAIT, STEP, Profile
from xmclab.runs.run import RunResult, run
from xmclab.training.trainer import Trainer

SMALL = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=16", "sampler.batch_size=256"]
SMALL += ["epochs=2", "refresh_every=1", "sampler=cluster", "miner=ann", "evaluate.every=1", "baseline=none"]


def finished(folder: Path, *overrides: str) -> tuple[RunResult, str]:
    """A run, and what it showed."""
    shown = io.StringIO()
    config = resolve([*SMALL, *overrides], default_registry())
    return run(config, folder, Console(file=shown, width=100)), shown.getvalue()


def losses(result: RunResult) -> list[tuple[float, float]]:
    records = map(json.loads, (result.folder / "metrics.jsonl").open())
    return [(record["loss"], record["gradient_norm"]) for record in records if record["event"] == "step"]


@pytest.mark.parametrize("parts", [[], ["encode.chunk=100", "reduction.clf=pal_n"]])
def test_a_profiled_run_has_the_same_numbers_and_says_where_its_time_went(tmp_path: Path, parts: list[str]) -> None:
    plain, shown = finished(tmp_path / "plain", *parts)
    profiled, table = finished(tmp_path / "profiled", "profile=true", *parts)
    assert losses(profiled) == losses(plain)
    assert profiled.metrics == plain.metrics
    assert "where the time went" not in shown
    assert "profile" not in plain.document

    found: dict[str, Any] = json.loads((profiled.folder / "result.json").read_text())["profile"]
    assert found["steps"] == len(losses(profiled))
    assert list(found["parts"]) == [*OF_A_STEP, "other", *BETWEEN_STEPS]
    assert all(part["ms"] > 0 for part in (*found["parts"].values(), *found["beside"].values()))
    assert sum(part["share"] for part in found["parts"].values()) == pytest.approx(1)
    times = {name: part["times"] for name, part in found["parts"].items()}
    assert times == {**dict.fromkeys(times, found["steps"]), "refresh": 1, "evaluation": 2}
    for part in found["parts"].values():
        assert part["times"] * part["ms"] == pytest.approx(1e3 * part["share"] * found["seconds"])
    of_steps = sum(found["parts"][name]["ms"] for name in (*OF_A_STEP, "other"))
    assert of_steps == pytest.approx(found["ms_per_step"])
    assert all(name in table for name in (*found["parts"], *BESIDE_STEPS))


def test_the_table_of_a_profile_adds_up() -> None:
    profile = Profile(torch.device("cpu"))
    profile.times.update({STEP: 20, "refresh": 3, "evaluation": 1})
    profile.seconds |= {STEP: 6.0, PLAN_WAIT: 1.0, "optimizer": 4.0, "refresh": 2.0, "evaluation": 1.0, "plan": 0.5}
    shown = io.StringIO()
    profile.print_table(Console(file=shown, width=100))
    rows = {line.rsplit(None, 4)[0].strip(): line.split()[-4:] for line in shown.getvalue().splitlines() if "%" in line}
    assert rows["plan wait"] == ["20", "50.00", "10.0", "%"]
    assert rows["optimizer"] == ["20", "200.00", "40.0", "%"]
    assert rows["other"] == ["20", "100.00", "20.0", "%"]
    assert rows["step total"] == ["20", "350.00", "70.0", "%"]
    assert rows["refresh"] == ["3", "666.67", "20.0", "%"]
    assert rows["evaluation"] == ["1", "1,000.00", "10.0", "%"]
    assert rows["total"] == ["1", "10,000.00", "100.0", "%"]


def test_every_operation_of_a_step_belongs_to_one_part() -> None:
    data = open_dataset("tiny", "title", default_registry())
    trainer = Trainer(resolve(SMALL, default_registry()), data)
    within: list[str] = []
    inside: Counter[str] = Counter()
    outside: list[str] = []

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        assert not within
        within.append(name)
        yield
        within.pop()

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if within:
                inside[within[0]] += 1
            else:
                outside.append(str(function))
            return function(*args, **(kwargs or {}))

    prepared = trainer.prepare(0, trainer.rows_N[:64])
    trainer.part = part
    with Operations():
        trainer.step(0, prepared)
    assert outside == []
    assert set(inside) == set(OF_A_STEP) - {PLAN_WAIT}


def test_a_part_that_is_off_notes_nothing() -> None:
    profile = Profile(torch.device("cpu"), on=False)
    with profile.part(STEP), profile.part("refresh"):
        pass
    assert set(profile.seconds.values()) == {0.0}
    assert not profile.times


@pytest.mark.parametrize(("on", "waits"), [(True, 4), (False, 0)])
def test_the_device_is_waited_for_only_by_a_profile_that_is_on(
    monkeypatch: pytest.MonkeyPatch, on: bool, waits: int
) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    device = torch.device("cuda", 0)
    profile = Profile(device, on)
    for name in ("optimizer", "refresh", *BESIDE_STEPS):  # the thread beside the steps never waits
        with profile.part(name):
            pass
    assert waited == [device] * waits
