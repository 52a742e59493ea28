"""Where a run computes, and how exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from xmclab.api import Tokens
from xmclab.errors import ConfigError, Problem

AUTO = "auto"
SUPPORTED = "auto, cpu, cuda or cuda:N"


def pick_device(name: str) -> torch.device:
    """`auto` is cuda where there is one, else the cpu; an unavailable device is refused."""
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(Problem(f"device={name}", "no such device", f"use {SUPPORTED}")) from error
    found = f"{torch.cuda.device_count()} CUDA devices found"
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise ConfigError(Problem(f"device={name}", f"not supported; {found}", f"use {SUPPORTED}"))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(Problem(f"device={name}", found, "use device=cpu or device=auto"))
    return device


def describe(device: torch.device, wanted: str) -> str:
    """The device of a run, and why `auto` chose the CPU."""
    return f"{device} (device=auto: no CUDA device found)" if (device.type, wanted) == ("cpu", AUTO) else str(device)


def autocast_for(device: torch.device, precision: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """The context that the products of a step run in."""
    if precision == "float32" or (precision == "auto" and device.type != "cuda"):
        return contextlib.nullcontext
    return partial(torch.autocast, device.type, dtype=torch.bfloat16)


def to_device(tokens: Tokens, device: torch.device) -> Tokens:
    """A chunk of tokens with its tensors on the device of the run."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in tokens.items()
    }


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """The same numbers every time, where torch supports it."""
    before = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # costs time, and nothing here reads memory before writing it
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = fill
