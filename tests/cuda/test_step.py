"""A whole step on a CUDA device that has no numbers: forward, backward, clipping and update, for everything shipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cases import cases

CASES = list(cases())
FOREIGN = "plugins/xmclab_pml/"  # where another library computes
# Waits of a step by file: its numbers, read once, and ids of words that both sides of a bag, or two tables, look up.
WAITS = {"training/transfer.py": 1, "model/tables.py": 2}
Ran = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def ran(request: pytest.FixtureRequest, in_process: Callable[..., list[dict[str, Any]]]) -> Ran:
    """What a case came to; recipes that were selected are run together, and all others."""
    selected = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    wanted = [case for case in CASES if case in selected]

    def of_case(case: str) -> dict[str, Any]:
        recipe = case.startswith("recipe:")
        names = [name for name in wanted if name.startswith("recipe:") == recipe]
        found = in_process("worker", "recipes" if recipe else "parts", *names)
        return next(each for each in found if each["case"] == case)

    return of_case


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("faulty:")])
def test_a_step_stays_on_the_device(ran: Ran, case: str) -> None:
    found = ran(case)
    assert "error" not in found, found["error"]
    for stage in found["stages"].values():
        assert stage["loss"] == 1.0  # what is read from the device
        assert stage["launches"] > 100
        assert all(line.startswith(FOREIGN) for line in stage["copies"]), stage["copies"]
        assert not stage["untrained"]
        for line, number in stage["waits"].items():
            assert line.startswith(FOREIGN) or number <= WAITS.get(line.partition(":")[0], 0), stage["waits"]


@pytest.mark.parametrize("case", ["faulty: mixed"])
def test_a_device_mismatch_fails_with_its_line(ran: Ran, case: str) -> None:
    error = ran(case)["error"]
    assert "tests/cuda/faulty.py:19" in error
    assert "cpu" in error
    assert "cuda:0" in error


@pytest.mark.parametrize("case", ["faulty: waiting"])
def test_waits_and_copies_are_counted_by_line(ran: Ran, case: str) -> None:
    (stage,) = ran(case)["stages"].values()
    assert stage["waits"]["faulty.py:27"] == 2  # once for each direction
    assert stage["copies"] == {"faulty.py:28": 2}
