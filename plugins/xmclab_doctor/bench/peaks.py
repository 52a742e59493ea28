"""What a device reaches by itself: products, memory, copies to it, launches. The roof is measured against these."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from xmclab_doctor.bench.roof import Speeds

SECONDS = 0.2  # that something is repeated for
LAUNCHED = 200  # small operations in a row


@dataclass(frozen=True)
class Peaks:
    """Operations and bytes per second, seconds of a launch; None: not measured here."""

    products: dict[str, float]  # by dtype
    bandwidth: float  # of memory, reads and writes
    pinned: float | None  # copies from the host
    pageable: float | None
    launch: float  # of an operation on a few numbers

    def speeds(self) -> Speeds:
        """For the roof."""
        single = self.products["float32"]
        return Speeds(max(self.products.values()), single, self.bandwidth)

    def document(self) -> dict[str, Any]:
        return asdict(self)


def measure(device: torch.device, half: bool, size: int = 8192) -> Peaks:
    """The peaks of a device.

    Args:
        half: it multiplies bfloat16; float16 is then measured too.
        size: rows and columns of products; other sizes follow.
    """
    dtypes = [torch.float32]
    if device.type == "cuda":
        dtypes += [torch.float16, *([torch.bfloat16] if half else [])]
    products = {str(dtype).removeprefix("torch."): product(device, dtype, size) for dtype in dtypes}
    bytes_moved = 16 * size * size
    host = {"pinned": True, "pageable": False} if device.type == "cuda" else {}
    copies = {name: from_host(device, bytes_moved, pinned) for name, pinned in host.items()}
    few = torch.zeros(8, device=device)

    def launches() -> None:
        for _ in range(LAUNCHED):
            few.add_(1.0)

    return Peaks(
        products,
        bandwidth(device, bytes_moved),
        copies.get("pinned"),
        copies.get("pageable"),
        best(device, launches) / LAUNCHED,
    )


def product(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations per second of a square product."""
    x, y, out = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(3))
    return 2 * size**3 / best(device, lambda: torch.mm(x, y, out=out))


def bandwidth(device: torch.device, size: int) -> float:
    """Bytes per second that a copy reads and writes."""
    x = torch.ones(size // 4, device=device)  # zeros may have no memory behind them
    y = torch.ones_like(x)
    return 2 * size / best(device, lambda: y.copy_(x))


def from_host(device: torch.device, size: int, pinned: bool) -> float:
    """Bytes per second to a card."""
    x = torch.ones(size // 4, pin_memory=pinned)
    y = torch.zeros(size // 4, device=device)
    return size / best(device, lambda: y.copy_(x, non_blocking=True))


def best(device: torch.device, work: Callable[[], object], seconds: float = SECONDS) -> float:
    """The least seconds of one of several calls; the first does not count."""
    work()
    wait(device)
    least, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        started = time.perf_counter()
        work()
        wait(device)
        least = min(least, time.perf_counter() - started)
    return least


def wait(device: torch.device) -> None:
    """Until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
