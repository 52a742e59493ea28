"""Where a run computes, and how exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from xmclab.api import Tokens
from xmclab.errors import ConfigError, Problem

AUTO = "auto"
SUPPORTED = "auto, cpu, cuda or cuda:N"
Context = Callable[[], contextlib.AbstractContextManager[object]]
TENSOR_CORES = (8, 0)  # the compute capability from which they take bfloat16 and TF32


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


@dataclass(frozen=True)
class Precision:
    """How exactly matrices are multiplied on a device: the type of the operands. Sums are always float32."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    tf32: bool = False  # operands in float32 are rounded to 10 bits of mantissa

    @cached_property
    def half(self) -> bool:
        return self.dtype != torch.float32

    @cached_property
    def low(self) -> torch.dtype | None:
        """The type of operands if it is less than float32."""
        return self.dtype if self.half else None

    @cached_property
    def autocast(self) -> Context:
        """The context of a forward pass."""
        return partial(torch.autocast, self.device.type, dtype=self.dtype) if self.half else contextlib.nullcontext

    @cached_property
    def casts_kept(self) -> Context:
        """Around several `autocast` of the same weights, with backward passes between them: each is cast once."""
        # torch drops casts at the end of the outermost context, whether it is enabled or not.
        return partial(torch.autocast, self.device.type, enabled=False) if self.half else contextlib.nullcontext

    @contextlib.contextmanager
    def without_gradients(self) -> Iterator[None]:
        """The context of encoding outside training."""
        # Casts of weights are not kept in inference mode.
        with torch.no_grad() if self.half else torch.inference_mode(), tensor_float(self.tf32), self.autocast():
            yield

    def report(self) -> dict[str, Any]:
        """What the run folder keeps, and `precision_of_run` reads."""
        return {"device": self.device.type, "precision": name_of(self.dtype), "tf32": self.tf32}


FULL = Precision(torch.device("cpu"))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device has instructions for products of this type; a CPU is taken at its word."""
    if device.type != "cuda" or dtype == torch.float32:
        return True
    return torch.cuda.get_device_capability(device) >= TENSOR_CORES


def precision_of(device: torch.device, wanted: Literal["auto", "float32", "bfloat16"], tf32: bool = False) -> Precision:
    """The precision of training: `auto` is bfloat16 on a GPU that multiplies it, else float32.

    Raises:
        ConfigError: bfloat16 on a GPU that would emulate it.
    """
    fits = multiplies(device, torch.bfloat16)
    if wanted == "bfloat16" and not fits:
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        reason = f"{device} has compute capability {capability}, and bfloat16 begins at 8.0"
        raise ConfigError(Problem("precision=bfloat16", reason, "use precision=auto or precision=float32"))
    half = wanted == "bfloat16" or (wanted == AUTO and device.type == "cuda" and fits)
    dtype = torch.bfloat16 if half else torch.float32
    return Precision(device, dtype, tf32 and device.type == "cuda" and fits)


def precision_of_run(device: torch.device, report: Mapping[str, Any]) -> Precision:
    """The precision of a run that said `report`, if this device is of the same kind and has it; else float32."""
    same = report.get("device") == device.type and multiplies(device, torch.bfloat16)
    half = same and report.get("precision") == name_of(torch.bfloat16)
    return Precision(device, torch.bfloat16 if half else torch.float32, same and bool(report.get("tf32")))


def to_device(tokens: Tokens, device: torch.device) -> Tokens:
    """A chunk of tokens with its tensors on the device of the run."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in tokens.items()
    }


@contextlib.contextmanager
def numerics(device: torch.device, repeats: bool | Literal["auto"], tf32: bool) -> Iterator[None]:
    """What a run sets for the whole process, as long as it lasts.

    Args:
        repeats: see `is_deterministic`.
    """
    with deterministic(is_deterministic(device, repeats)), tensor_float(precision_of(device, "auto", tf32).tf32):
        yield


def is_deterministic(device: torch.device, wanted: bool | Literal["auto"]) -> bool:
    """Whether only deterministic algorithms are used; `auto`: on a CPU, where they cost nothing."""
    return device.type == "cpu" if wanted == AUTO else bool(wanted)


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


@contextlib.contextmanager
def tensor_float(wanted: bool) -> Iterator[None]:
    """Products of float32 matrices by TF32 on a GPU, or not, whatever was set before."""
    products: Any = torch.backends.cuda.matmul
    # Versions of torch that have the new name warn of the old one.
    new = hasattr(torch.backends, "fp32_precision")
    name, values = ("fp32_precision", ("ieee", "tf32")) if new else ("allow_tf32", (False, True))
    before = getattr(products, name)
    setattr(products, name, values[wanted])
    try:
        yield
    finally:
        setattr(products, name, before)
