"""When checkpoints are taken, and what they do where memory is short; what they hold is in tests/faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmclab.runs import checkpoints
from xmclab.runs.checkpoints import Checkpoints, by_step, newest
from xmclab.system import usage
from xmclab.system.signals import Signals
from xmclab.training.loop import Position


@pytest.fixture
def made(small_trainer: Callable[..., Any], tmp_path: Path) -> Callable[..., Checkpoints]:
    def make(*overrides: str) -> Checkpoints:
        about = {"config": {}, "data": ""}
        return Checkpoints(tmp_path, small_trainer(*overrides), None, Signals(), about, lambda: None, Position())

    return make


def after(of: Checkpoints, step: int, seconds: float, epoch_ends: bool = False) -> bool:
    """Whether a checkpoint is taken after this step, if the latest was so many seconds ago."""
    of._last, before = time.perf_counter() - seconds, of.saved
    of.reached(Position(step=step))
    of.after_step(Position(step=step), lambda: None)
    if epoch_ends:
        of.after_epoch(Position(step=step))
    of._join()
    return of.saved != before


def test_a_time_is_waited_for(made: Callable[..., Checkpoints]) -> None:
    with made("checkpoint.every=10m") as of:
        assert [after(of, step, seconds) for step, seconds in ((1, 1), (2, 590), (3, 601))] == [False, False, True]


def test_ends_of_epochs_are_used_as_long_as_they_cost_little(made: Callable[..., Checkpoints]) -> None:
    with made() as of:
        of._cost = 1.0
        assert [after(of, n, seconds, epoch_ends=True) for n, seconds in ((1, 45), (2, 55))] == [False, True]


def test_steps_are_counted_and_epochs_are_not(made: Callable[..., Checkpoints]) -> None:
    with made("checkpoint.every=3") as of:
        assert [after(of, step, 1e6, epoch_ends=True) for step in range(1, 7)] == [False, False, True] * 2


def test_off_is_off(made: Callable[..., Checkpoints], tmp_path: Path) -> None:
    with made("checkpoint.every=0") as of:
        assert not any(after(of, step, 1e6, epoch_ends=True) for step in range(1, 4))
        of.save_here()
    assert not list(tmp_path.iterdir())


def test_only_so_many_are_kept(made: Callable[..., Checkpoints]) -> None:
    with made("checkpoint.every=1", "checkpoint.keep=2") as of:
        for step in range(1, 5):
            assert after(of, step, 0)
        assert [folder.name for folder in by_step(of.root)] == ["step-000000004", "step-000000003"]


def test_without_memory_for_a_copy_training_waits_for_the_write(
    made: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(usage, "free", lambda: 1000)
    monkeypatch.setattr(Checkpoints, "_copied", lambda *_: pytest.fail("it was copied"))
    with made("checkpoint.every=1") as of:
        of.reached(Position(step=1))
        of.after_step(Position(step=1), lambda: None)
        assert of._job is None
        found = newest(tmp_path)
        assert found
        assert found.at.step == 1


def test_steps_are_sorted_by_number(tmp_path: Path) -> None:
    for name in ("step-000000009", "step-1000000000", "step-000000010", "step-x", "best-000001"):
        (tmp_path / name).mkdir()
    assert [checkpoints.step_of(folder) for folder in by_step(tmp_path)] == [1000000000, 10, 9]
