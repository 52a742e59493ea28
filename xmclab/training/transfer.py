"""What crosses between the host and the device of the run, so that neither waits for the other.

The input of a step goes there in one copy from pinned memory, on a stream of its own; its numbers come back behind it.
On a CPU both are where they are needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")
ALIGNMENT = 256  # bytes, as torch places tensors of its own


class Shipment:
    """A copy on its way to the device."""

    def __init__(self, buffer: Tensor, copied: torch.cuda.Event) -> None:
        self._buffer, self._copied = buffer, copied

    def receive(self) -> None:
        """Let the current stream, and nobody else, wait for the copy."""
        stream = torch.cuda.current_stream(self._buffer.device)
        stream.wait_event(self._copied)
        self._buffer.record_stream(stream)


class Shipping:
    """Sends trees of tensors (in lists, tuples, dicts and dataclasses) to a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, tree: Tree) -> tuple[Tree, Shipment | None]:
        """The tree with its tensors on the device; those that are there, or on no device, are left alone.

        On CUDA they may be used once the shipment is received.
        """
        if self.device.type == "cpu":
            return tree, None
        if self.device.type != "cuda":
            return replaced(tree, lambda x: x.to(self.device)), None
        parts: list[Tensor] = []

        def listed(part: Tensor) -> Tensor:
            parts.append(part)
            return part

        replaced(tree, listed)
        host, starts = packed(parts, pinned=True)
        self._stream = self._stream or torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._stream):
            buffer = host.to(self.device, non_blocking=True)
            copied = self._stream.record_event()
        arrived = iter([view(buffer, start, part) for start, part in zip(starts, parts, strict=True)])
        return replaced(tree, lambda _: next(arrived)), Shipment(buffer, copied)


def packed(parts: list[Tensor], pinned: bool) -> tuple[Tensor, list[int]]:
    """The bytes of host tensors one after the other, in memory that the device may read itself, and their starts."""
    starts, end = [], 0
    for part in parts:
        starts.append(end)
        end += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
    host = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
    for start, part in zip(starts, parts, strict=True):
        view(host, start, part).copy_(part)
    return host, starts


def view(buffer: Tensor, start: int, like: Tensor) -> Tensor:
    """The tensor that begins at this byte."""
    return buffer[start : start + prod(like.shape) * like.dtype.itemsize].view(like.dtype).view(like.shape)


def replaced(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with host tensors changed, in a fixed order; what has none is returned as it is."""
    if isinstance(tree, Tensor):
        return change(tree) if tree.device.type == "cpu" else tree
    if isinstance(tree, dict):
        return {key: replaced(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(replaced(value, change) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(replaced(value, change) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        values = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **{name: replaced(value, change) for name, value in values.items()})
    return tree


class Fetched:
    """Numbers on their way to the host; reading them waits until they are there."""

    def __init__(self, x: Tensor) -> None:
        self._event: torch.cuda.Event | None = None  # None: they are there
        if x.is_cuda:
            self._x = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
            self._event = torch.cuda.current_stream(x.device).record_event()
        else:
            self._x = x.clone()

    def tolist(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        numbers: list[float] = self._x.tolist()
        return numbers
