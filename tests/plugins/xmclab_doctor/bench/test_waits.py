"""Waits are counted per step, by the place that waits."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from types import SimpleNamespace as Of
from typing import Any

import pytest
import torch

from xmclab_doctor.bench.waits import SIGN, WARM_UP, count, reported, short


@contextlib.contextmanager
def mode(device: torch.device) -> Iterator[None]:
    yield


def trainer(waiting: dict[int, int]) -> Any:
    """A trainer whose steps wait so often, as torch reports it."""

    def launch(number: int, prepared: object) -> int:
        for _ in range(waiting.get(number, 1)):
            text = f"{SIGN} (Triggered internally)"
            warnings.warn_explicit(text, UserWarning, "/env/lib/xmclab/training/trainer.py", 330)
        warnings.warn("something else", UserWarning, stacklevel=1)
        return number

    plan = [0] * 4
    return Of(
        device=torch.device("cuda"),
        late=True,
        launch=launch,
        finish=lambda launched: None,
        plan=lambda epoch: plan,
        batches=lambda plans, first: iter(plans),
    )


def test_the_most_of_a_step_counts_and_the_first_steps_do_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the steps before those that count
        found = count(trainer({0: 9, WARM_UP + 2: 3}), mode, steps=5)
    assert (found.most, found.places) == (3, {"xmclab/training/trainer.py:330": 7})


def test_a_cpu_has_none_to_count() -> None:
    found = count(Of(device=torch.device("cpu")))
    assert (found.most, found.detail) == (None, "waits are counted on a card only")


def test_places_have_no_folders_of_the_machine() -> None:
    assert short("/home/you/env/lib/python3.12/site-packages/torch/nn/functional.py") == "torch/nn/functional.py"
    assert short("/home/you/train.py") == "train.py"
    assert short("C:\\env\\xmclab\\model\\model.py") == "xmclab/model/model.py"


def test_torch_warns_of_waits_meanwhile_only(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = [0]
    monkeypatch.setattr("torch.cuda.get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", modes.append)
    with reported(torch.device("cuda")):
        assert modes == [0, "warn"]
    assert modes == [0, "warn", 0]
