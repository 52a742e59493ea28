"""Devices: one that is not there is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from xmclab.errors import ConfigError


def test_a_device_that_is_not_there_is_refused(small_trainer: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="CUDA devices found"):
        small_trainer("device=cuda:7")
    with pytest.raises(ConfigError, match="no such device"):
        small_trainer("device=teapot")
