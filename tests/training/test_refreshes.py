"""When a run refreshes, against counting steps one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmclab.host.schema import Settings
from xmclab.training.refreshes import Refreshes


def places(made: Refreshes) -> list[tuple[int, int]]:
    """(epoch, batch) of every refresh."""
    epochs, per_epoch = range(made.settings.epochs), made.steps_per_epoch
    return [
        (epoch, batch)
        for epoch in epochs
        for batch in range(per_epoch)
        if made.due(epoch, batch, epoch * per_epoch + batch)
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"refresh_every": 2}, [(2, 0), (4, 0)]),
        ({"refresh_every": 2, "refresh_from": 1}, [(1, 0), (3, 0), (5, 0)]),
        ({"refresh_every": 5, "refresh_from": 3}, [(3, 0)]),
        ({"refresh_steps": 6}, [(1, 2), (3, 0), (4, 2)]),
        ({"refresh_steps": 6, "refresh_every": 1}, [(1, 2), (3, 0), (4, 2)]),
        ({"refresh_steps": 3, "refresh_from": 4}, [(4, 0), (4, 3), (5, 2)]),
        ({"refresh_every": 6}, []),
    ],
)
def test_epochs_or_steps_set_the_rhythm(changes: dict[str, int], expected: list[tuple[int, int]]) -> None:
    made = Refreshes(replace(Settings(), epochs=6, **changes), steps_per_epoch=4)
    assert places(made) == expected
    assert made.before == [4 * epoch + batch for epoch, batch in expected]


@pytest.mark.parametrize(("steps", "first"), [(1, 0), (3, 0), (5, 2), (40, 0), (7, 1)])
def test_the_steps_until_the_next_refresh_are_those_before_it(steps: int, first: int) -> None:
    settings = replace(Settings(), epochs=9, refresh_steps=steps, refresh_from=first)
    made = Refreshes(settings, steps_per_epoch=4)
    due = set(made.before)
    for step in range(30):
        following = min((place for place in due if place > step), default=None)
        if following is not None:
            assert made.within(step) == following - step


@pytest.mark.parametrize(("steps", "passes"), [(0, 5), (1, 1), (4, 1), (5, 2), (12, 3)])
def test_the_passes_between_two_refreshes(steps: int, passes: int) -> None:
    made = Refreshes(replace(Settings(), refresh_steps=steps), steps_per_epoch=4)
    assert made.passes == passes
    assert (made.within(0) is None) == (steps == 0)


def test_without_need_there_is_none() -> None:
    made = Refreshes(replace(Settings(), epochs=6, refresh_steps=2), 4, needed=False)
    assert places(made) == made.before == []
    assert made.within(3) is None
