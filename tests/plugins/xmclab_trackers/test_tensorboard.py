"""The numbers of a run as TensorBoard scalars."""

from __future__ import annotations

from pathlib import Path

from xmclab_trackers.records import numbers
from xmclab_trackers.tensorboard import TensorBoard

STEP = {"event": "step", "epoch": 0, "step": 3, "last_of_epoch": True, "loss": 0.5, "terms": {"de/ds/q2l": 0.25}}
EVAL = {"event": "eval", "epoch": 1, "metrics": {"de+clf": {"P@1": 12.5}}}
END = {"event": "end", "error": "", "message": "", "seconds": 2.0}


def test_tensorboard_writes_scalars_by_step(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard()
    tracker.start(tmp_path, {})
    for record in (STEP, EVAL, END):
        tracker.log(record)
    tracker.end()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found == {name: [(3, value)] for record in (STEP, EVAL, END) for name, value in numbers(record)}
