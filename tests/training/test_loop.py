"""The loop: what happens when, and a whole run against the numbers that it gave before."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from xmclab.data import open_dataset
from xmclab.errors import DivergedError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.training.loop import Guard, Position, fit
from xmclab.training.trainer import Trainer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tiny_unidec.json").read_text(encoding="utf-8"))
EARLIER = ["encoder.towers=shared", "head.clf.bias=none", "pool.beta=3", "search=heads"]  # the recipe, then
SMALL = ["data=tiny", "encoder.dim=8", "head.de.dim=8", "head.clf=none", "sampler.batch_size=640", "miner=ann"]


def trainer(*overrides: str) -> Trainer:
    return Trainer(resolve([*SMALL, *overrides], default_registry()), open_dataset("tiny", "title", default_registry()))


def records(made: Trainer) -> list[tuple[Any, ...]]:
    """(event, epoch) of everything that is logged; `measured` where the model was."""
    seen: list[tuple[Any, ...]] = []

    def evaluate() -> dict[str, dict[str, float]]:
        seen.append(("measured",))
        return {"de": {"P@1": 1.0}}

    seconds = fit(made, lambda record: seen.append((record["event"], record["epoch"])), evaluate)
    assert seconds > 0
    return seen


def test_refresh_steps_and_evaluations_come_in_their_order() -> None:
    found = records(trainer("epochs=3", "refresh_every=2", "evaluate.every=2"))
    steps = {epoch: [("step", epoch)] * 2 for epoch in range(3)}
    first, second, third = steps.values()
    assert found == [
        *first,
        *second,
        ("measured",),
        ("eval", 2),
        ("refresh", 2),
        *third,
        ("measured",),
        ("eval", 3),
    ]


def test_a_refresh_within_an_epoch_changes_negatives_and_leaves_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is prepared while the miner is refreshed; the batches of the next epoch come from the new view."""
    made = trainer("epochs=3", "sampler=cluster", "sampler.batch_size=320", "refresh_steps=6", "pool.eta=2")
    per_epoch, seen, planned, preparing = made.refreshes.steps_per_epoch, [], [], []
    assert per_epoch == 4
    refresh, plan, prepare = made.refresh, made.plan, made.prepare

    def refreshing(epoch: int, batch: int) -> Any:
        assert not preparing
        return refresh(epoch, batch)

    def planning(epoch: int) -> Any:
        planned.append((epoch, made.view and (made.view.epoch, made.view.batch), plan(epoch)))
        return planned[-1][2]

    def prepared(step: int, rows: Any) -> Any:
        preparing.append(step)
        try:
            epoch, batch = divmod(step, per_epoch)
            assert rows is planned[epoch][2][batch]
            found = prepare(step, rows)
            seen.append((step, found.batch.missing == 2 * len(rows)))
            return found
        finally:
            preparing.pop()

    for name, function in (("refresh", refreshing), ("plan", planning), ("prepare", prepared)):
        monkeypatch.setattr(made, name, function)
    logged: list[tuple[Any, ...]] = []
    fit(made, lambda record: logged.append((record["event"], record.get("step"))), dict)
    assert seen == [(step, step < 6) for step in range(12)]
    assert [(epoch, view) for epoch, view, _ in planned] == [(0, None), (1, None), (2, (1, 2))]
    steps = [("step", step) for step in range(12)]
    assert logged[:-1] == [*steps[:6], ("refresh", 6), *steps[6:]]
    assert made.mining_depth == 2 * 2


def test_without_a_rhythm_it_is_measured_at_the_end_alone() -> None:
    assert records(trainer("epochs=2", "refresh_every=5", "evaluate.every=0"))[-2:] == [("measured",), ("eval", 2)]
    assert records(trainer("epochs=2", "refresh_every=5", "evaluate.every=2")).count(("measured",)) == 1


class Choice:
    """Validation whose second measurement is the best."""

    def __init__(self, seen: list[tuple[Any, ...]], enough: int = 9) -> None:
        self.seen, self.enough_after = seen, enough

    def measure(self, epoch: int) -> dict[str, Any]:
        self.seen.append(("validated", epoch))
        self.epoch = epoch
        return {"metrics": {"de": {"P@1": 2.0}}, "best": epoch == 4}

    @property
    def enough(self) -> bool:
        return self.epoch >= self.enough_after

    def restore(self) -> int:
        self.seen.append(("restored",))
        return 4


def test_with_validation_the_test_queries_wait_for_the_best_epoch() -> None:
    seen: list[tuple[Any, ...]] = []

    def log(record: Any) -> None:
        if record["event"] == "eval":
            seen.append((record["split"], record["epoch"], record["metrics"]["de"]["P@1"], record.get("best")))

    def evaluate() -> dict[str, dict[str, float]]:
        seen.append(("measured",))
        return {"de": {"P@1": 1.0}}

    made = trainer("epochs=5", "miner=none", "validate.every=2", "evaluate.every=1")
    fit(made, log, evaluate, Choice(seen))
    assert seen == [
        ("validated", 2),
        ("validation", 2, 2.0, False),
        ("validated", 4),
        ("validation", 4, 2.0, True),
        ("validated", 5),
        ("validation", 5, 2.0, False),
        ("restored",),
        ("measured",),
        ("test", 4, 1.0, None),
    ]


def test_training_stops_when_validation_has_seen_enough() -> None:
    seen: list[tuple[Any, ...]] = []
    steps: list[Any] = []
    fit(trainer("epochs=9", "miner=none"), steps.append, lambda: {"de": {"P@1": 1.0}}, Choice(seen, enough=2))
    assert seen == [("validated", 1), ("validated", 2), ("restored",)]
    assert {record["epoch"] for record in steps if record["event"] == "step"} == {0, 1}


def test_every_step_says_its_number_and_whether_it_ends_the_epoch() -> None:
    steps: list[dict[str, Any]] = []
    fit(trainer("epochs=2"), lambda record: steps.append(dict(record)), dict)
    steps = [record for record in steps if record["event"] == "step"]
    assert [record["step"] for record in steps] == [0, 1, 2, 3]
    assert [record["last_of_epoch"] for record in steps] == [False, True, False, True]


def test_a_run_gives_the_numbers_that_it_gave(tmp_path: Path, call: Any) -> None:
    """To the last digits that differ between machines; on one machine they are the same bit for bit."""
    out = tmp_path / "run"
    assert call(*GOLDEN["command"].split()[1:], *EARLIER, "--out", out)[0] == 0
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in found if record["event"] == "step"]
    for step, expected in zip(steps, GOLDEN["steps"], strict=True):
        assert {key: step[key] for key in expected if key != "terms"} == pytest.approx(
            {key: value for key, value in expected.items() if key != "terms"}, rel=1e-4
        )
        assert step["terms"] == pytest.approx(expected["terms"], rel=1e-4)
    result = json.loads((out / "result.json").read_text())
    for kind in ("metrics", "baselines"):
        assert set(result[kind]) == set(GOLDEN[kind])
        for search, expected in GOLDEN[kind].items():
            assert result[kind][search] == pytest.approx(expected, abs=0.6)  # a tie or two may fall otherwise


class Places(Guard):
    """Notes what is known to be done, and wants to know everything after some steps."""

    def __init__(self, asks_after: tuple[int, ...] = ()) -> None:
        self.asks_after = asks_after
        self.reached_steps: list[int] = []
        self.behind: list[int] = []  # after each step, the steps that are not known to be done

    def reached(self, at: Position) -> None:
        self.reached_steps.append(at.step)

    def after_step(self, at: Position, known: Any) -> None:
        if at.step in self.asks_after:
            known()
        self.behind.append(at.step - (self.reached_steps or [0])[-1])


@pytest.mark.parametrize(("late", "behind"), [(False, [0, 0, 0, 0]), (True, [1, 1, 0, 1])])
def test_steps_are_logged_as_they_end_or_one_step_late(late: bool, behind: list[int]) -> None:
    made = trainer("epochs=2", "miner=none")
    made.late = late
    guard, logged = Places(asks_after=(3,)), []
    fit(made, logged.append, lambda: {"de": {"P@1": 1.0}}, guard=guard)
    steps = [record for record in logged if record["event"] == "step"]
    assert [(r["step"], r["epoch"], r["last_of_epoch"]) for r in steps] == [
        (0, 0, False),
        (1, 0, True),
        (2, 1, False),
        (3, 1, True),
    ]
    assert all(record["seconds"] > 0 and record["loss"] > 0 for record in steps)
    assert guard.behind == behind
    assert guard.reached_steps == [1, 2, 3, 4]
    assert logged[-1]["event"] == "eval"


@pytest.mark.parametrize("late", [False, True])
def test_the_place_that_was_reached_is_that_before_the_step_that_fails(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer("epochs=1", "miner=none", "sampler.batch_size=320")
    made.late = late
    backward = made.backward

    def failing(step: int, batch: Any) -> Any:
        loss, values = backward(step, batch)
        return (loss * math.nan if step == 2 else loss), values

    monkeypatch.setattr(made, "backward", failing)
    guard, logged = Places(), []
    with pytest.raises(DivergedError, match="step 2"):
        fit(made, logged.append, dict, guard=guard)
    assert guard.reached_steps == [1, 2]
    assert [record["step"] for record in logged] == [0, 1]
    assert made.optimizers.updates == 2
