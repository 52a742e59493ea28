"""Devices: one that is not there, or not supported, is refused; the precision follows from the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.errors import ConfigError
from xmclab.model.device import (
    Precision,
    describe,
    is_deterministic,
    numerics,
    pick_device,
    precision_of,
    precision_of_run,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: request.param)


def test_a_device_that_is_not_there_is_refused(small_trainer: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="CUDA devices found"):
        small_trainer("device=cuda:7")
    with pytest.raises(ConfigError, match="no such device"):
        small_trainer("device=teapot")


@pytest.mark.parametrize("name", ["mps", "meta", "xpu", "cpu:1"])
def test_a_device_that_is_not_supported_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"device={name}: not supported; \d+ CUDA devices found"):
        pick_device(name)


def test_auto_says_why_it_is_the_cpu() -> None:
    assert describe(torch.device("cpu"), "auto") == "cpu (device=auto: no CUDA device found)"
    assert describe(torch.device("cpu"), "cpu") == "cpu"
    assert describe(torch.device("cuda"), "auto") == "cuda"


@pytest.mark.parametrize(
    ("card", "wanted", "dtype", "tf32"),
    [
        ((8, 0), "auto", torch.bfloat16, True),
        ((9, 0), "bfloat16", torch.bfloat16, True),
        ((8, 9), "float32", torch.float32, True),
        ((7, 5), "auto", torch.float32, False),
        ((7, 0), "float32", torch.float32, False),
    ],
    indirect=["card"],
)
@pytest.mark.usefixtures("card")
def test_a_gpu_multiplies_what_it_has_instructions_for(wanted: Any, dtype: torch.dtype, tf32: bool) -> None:
    assert precision_of(GPU, wanted, tf32=True) == Precision(GPU, dtype, tf32)
    assert not precision_of(GPU, wanted).tf32


def test_a_cpu_takes_float32_unless_told_otherwise() -> None:
    assert precision_of(CPU, "auto", tf32=True) == Precision(CPU)
    assert precision_of(CPU, "bfloat16").low == torch.bfloat16
    assert Precision(CPU).low is None


@pytest.mark.parametrize("card", [(7, 0)], indirect=True)
@pytest.mark.usefixtures("card")
def test_emulated_bfloat16_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cuda:0 has compute capability 7\.0, and bfloat16 begins at 8\.0"):
        precision_of(GPU, "bfloat16")


@pytest.mark.parametrize(
    ("card", "device", "precision"),
    [
        ((8, 0), GPU, Precision(GPU, torch.bfloat16, tf32=True)),
        ((7, 0), GPU, Precision(GPU)),
        ((8, 0), CPU, Precision(CPU)),
    ],
    indirect=["card"],
)
@pytest.mark.usefixtures("card")
def test_predictions_are_in_the_precision_of_the_run_where_the_device_has_it(
    device: torch.device, precision: Precision
) -> None:
    report = Precision(GPU, torch.bfloat16, tf32=True).report()
    assert report == {"device": "cuda", "precision": "bfloat16", "tf32": True}
    assert precision_of_run(device, report) == precision
    assert precision_of_run(device, {}) == Precision(device)  # of a run before it was recorded


@pytest.mark.parametrize("card", [(8, 0)], indirect=True)
@pytest.mark.usefixtures("card")
def test_a_run_restores_what_it_set() -> None:
    products: Any = torch.backends.cuda.matmul

    def state() -> tuple[str, bool]:
        return products.fp32_precision, torch.are_deterministic_algorithms_enabled()

    before = state()
    with numerics(GPU, "auto", True):
        assert state() == ("tf32", False)
        with numerics(GPU, True, False):
            assert state() == ("ieee", True)
        assert state() == ("tf32", False)
    with numerics(CPU, "auto", True):
        assert state() == ("ieee", True)
    assert state() == before
    assert is_deterministic(CPU, "auto")
    assert not is_deterministic(GPU, "auto")
