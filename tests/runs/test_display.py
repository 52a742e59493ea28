"""What is shown while a run trains: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from xmclab.runs.display import Display, TimeLeft

RECORD = {
    "event": "step",
    "epoch": 1,
    "step": 5,
    "last_of_epoch": True,
    "loss": 2.5,
    "terms": {"de/ds/q2l": 1.25, "clf/bce/cells": 0.5},
    "queries": 100,
    "pool": 321,
    "positives": 2.5,
    "dropped": 4,
}
SHOWN = ["2.5000", "de/ds/q2l 1.250", "clf/bce/cells 0.500", "positives/query 2.5", "pool 321", "without positive 4"]


@pytest.mark.parametrize("terminal", [True, False])
def test_everything_a_person_watches_is_shown(terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=300, color_system=None, _environ={"TERM": "xterm"})
    with Display(console, epochs=3, steps=12) as display:
        for _ in range(6):
            display.show(RECORD)
    text = file.getvalue()
    for part in [*SHOWN, "epoch 2/3", "queries/s", "6/12"]:
        assert part in text


def test_a_log_has_one_line_per_epoch_not_one_per_step() -> None:
    file = io.StringIO()
    with Display(Console(file=file, width=60), epochs=3, steps=12) as display:
        for step in range(4):
            display.show({**RECORD, "step": step, "last_of_epoch": step == 3})
    assert len(file.getvalue().splitlines()) == 1
    assert "s left" in file.getvalue()


def test_validations_are_shown_and_the_last_test_is_left_to_the_table() -> None:
    file = io.StringIO()
    evaluation = {"event": "eval", "seconds": 1.0}
    metrics = {"de": {"P@1": 10.0, "PSP@1": 5.0}, "clf": {"P@1": 20.0, "PSP@1": 15.0}}
    with Display(Console(file=file, width=100), epochs=2, steps=12, metric="PSP@1") as display:
        display.show({**RECORD, "epoch": 0})
        display.show({**evaluation, "epoch": 1, "split": "validation", "best": True, "metrics": metrics})
        display.show({**evaluation, "epoch": 1, "split": "test", "metrics": metrics})
        display.show({**RECORD, "epoch": 1})
        display.show({**evaluation, "epoch": 2, "split": "validation", "best": False, "metrics": metrics})
        display.show({**evaluation, "epoch": 1, "split": "test", "metrics": metrics})
    lines = [line for line in file.getvalue().splitlines() if line.startswith(("after", "kept"))]
    assert lines == [
        "after epoch 1: validation de PSP@1 5.00  clf PSP@1 15.00  (best so far)",
        "kept epoch 1, test: de P@1 10.00  clf P@1 20.00",
        "after epoch 2: validation de PSP@1 5.00  clf PSP@1 15.00",
    ]


def test_the_end_of_patience_is_shown() -> None:
    file = io.StringIO()
    with Display(Console(file=file, width=100), epochs=30, steps=12) as display:
        display.stopped(6, best=1)
    assert file.getvalue() == "stopped after epoch 6: no better for 5 epochs (stop.patience)\n"


def test_a_refresh_says_what_was_refreshed() -> None:
    file = io.StringIO()
    with Display(Console(file=file, width=100), epochs=2, steps=12) as display:
        display.show({"event": "refresh", "seconds": 1.24, "epoch": 1, "step": 6, "refreshed": "clusters"})
    assert file.getvalue() == "epoch 2, step 6: refreshed clusters in 1.2 s\n"


def test_the_time_left_is_that_of_steps_since_the_pool_grew() -> None:
    left = TimeLeft(epochs=4, steps=40, refreshes=[10, 20, 30])
    now = 0.0
    for step in range(10):
        now += 1.0
        left.see({**RECORD, "step": step}, now)
        assert left.grows(step + 1)
    assert left.after(10) == 30.0  # nothing is known of refreshes yet
    now += 100
    left.see({"event": "refresh", "seconds": 5.0, "epoch": 1, "step": 10}, now)
    for step in range(10, 15):
        now += 4.0
        left.see({**RECORD, "step": step}, now)
        assert not left.grows(step + 1)
    assert left.after(15) == 25 * 4.0 + 2 * 5.0


def test_evaluations_count_in_the_time_left() -> None:
    left = TimeLeft(epochs=4, steps=40, refreshes=[])
    for step in range(10):
        left.see(RECORD, step)
    assert not left.grows(10)
    left.see({"event": "eval", "epoch": 1}, 9 + 20.0)
    assert left.after(10) == 30 * 1.0 + 3 * 20.0
    assert TimeLeft(4, 40, []).after(0) is None


def test_a_long_loss_keeps_the_line_short() -> None:
    file = io.StringIO()
    options = {"force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}}
    metrics = {"metrics": {"de": {"P@1": 100.0}}, "event": "eval", "split": "test", "epoch": 99, "best": True}
    with Display(Console(file=file, width=80, **options), epochs=100, steps=1000000) as display:
        display.show(metrics)
        for _ in range(3):
            display.show({**RECORD, "epoch": 99, "loss": 123456.789, "queries": 10})
    assert "loss 1.23e+05  P@1 100.00" in file.getvalue()
