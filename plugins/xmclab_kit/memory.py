"""Measures the memory of a computation."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class PeakMemory(TorchFunctionMode):
    """Counts the bytes of tensors that torch calls return and that are still alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        self.peak = max(self.peak, self.live)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self.live += size

        def release(_: object) -> None:
            self.live -= size
            self._storages.pop(key, None)

        self._storages[key] = weakref.ref(storage, release)
