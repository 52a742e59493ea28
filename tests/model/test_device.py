"""Devices: one that is not there, or not supported, is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.errors import ConfigError
from xmclab.model.device import describe, pick_device


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
