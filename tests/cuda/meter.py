"""What a step asks of a CUDA device: waits, copies, launches and memory, by source line."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import transformers
from device import Device, aten, on_device
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[2]
SITES = {  # folders whose lines are named, and what their names start with
    f"{ROOT / 'xmclab'}/": "",
    f"{ROOT / 'plugins'}/": "plugins/",
    str(Path(__file__).with_name("faulty.py")): "faulty.py",
    f"{Path(transformers.__file__).parent}/": "transformers/",
}
BACKWARD = str(Path(torch.autograd.graph.__file__))
NO_KERNEL = {  # besides views
    aten._unsafe_view,
    aten._reshape_alias,
    aten.lift_fresh,
    aten.resize_,
    aten.set_,
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}


class Meter(Device):
    """Counts by source line, and keeps the ledger of the device's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: Counter[str] = Counter()
        self.pageable: Counter[str] = Counter()  # copies to the device that the host takes part in
        self.pinned_copies: Counter[str] = Counter()
        self.launched: Counter[str] = Counter()  # operations that launch a kernel or more
        self.operations: Counter[str] = Counter()  # the same, by name
        self.held = self.peak = self._noted = 0  # bytes
        self.held_by: Counter[str] = Counter()  # bytes by the line that allocated them
        self.at_peak: Counter[str] = Counter()  # the same, within 1 % of the peak
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._lines: dict[int, str] = {}  # of nodes of the graph, by their sequence number

    def forget(self) -> None:
        """Count from 0, and measure the peak from what is held now."""
        for counter in (self.waited, self.pageable, self.pinned_copies, self.launched, self.operations):
            counter.clear()
        self.peak, self._noted, self.at_peak = self.held, self.held, Counter(self.held_by)

    def waits(self, func: Any, args: Any) -> None:
        self.waited[self._line()] += 1

    def ran(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        made = [x for x in tree_leaves(out) if on_device(x)]
        packet = getattr(func, "overloadpacket", None)
        if not made or packet is aten.detach:
            return
        line = self._line()
        for x in made:
            self._hold(x, line)
        if packet is aten.index and any(isinstance(i, Tensor) and not on_device(i) for i in args[1]):
            self.pageable[line] += 1  # ids of the host
        if self._copies(func, args, kwargs, line):
            return
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not view and packet not in NO_KERNEL and any(x.numel() for x in made):
            self.launched[line] += 1
            self.operations[str(packet).removeprefix("aten.")] += 1

    def _copies(self, func: Any, args: Any, kwargs: Any, line: str) -> bool:
        """Counts a copy from the host."""
        packet, source, non_blocking = func.overloadpacket, None, bool(kwargs.get("non_blocking"))
        if packet is aten._to_copy:
            source = args[0]
        elif packet is aten.copy_:
            source, non_blocking = args[1], non_blocking or (len(args) > 2 and bool(args[2]))
        if source is None or on_device(source) or isinstance(source, FakeTensor):
            return False
        if not source.ndim and packet is aten.copy_:
            return False  # a number is an argument of the kernel
        pinned = self.is_pinned(source) and non_blocking
        (self.pinned_copies if pinned else self.pageable)[line] += 1
        return True

    def _hold(self, x: Tensor, line: str) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self._storages[key] = weakref.ref(storage, partial(self._free, key, size, line))
        self.held += size
        self.held_by[line] += size
        if self.held > self.peak:
            self.peak = self.held
            if self.peak > 1.01 * self._noted:
                self._noted, self.at_peak = self.peak, Counter(self.held_by)

    def _free(self, key: int, size: int, line: str, _: object) -> None:
        del self._storages[key]
        self.held -= size
        self.held_by[line] -= size

    def _line(self) -> str:
        """The innermost line of ours, or of transformers; in a backward pass that of the forward operation."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file == BACKWARD:
                node = torch._C._current_autograd_node()
                line = None if node is None else self._lines.get(node._sequence_nr())
                if line is not None:
                    return f"{line} (backward)"
            for folder, name in SITES.items():
                if file.startswith(folder):
                    found = f"{name}{file.removeprefix(folder)}:{frame.f_lineno}"
                    self._lines[torch.autograd._get_sequence_nr() - 1] = found
                    return found
            frame = frame.f_back
        return "elsewhere"
