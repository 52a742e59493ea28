"""How often a step waits for the card: each wait leaves it idle. One is allowed, the reading of the loss."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from xmclab_doctor.bench import synthetic

STEPS, WARM_UP, ALLOWED = 5, 3, 1
SIGN = "called a synchronizing CUDA operation"  # in torch's warnings
REASON = "waits are counted on a card only"


@dataclass(frozen=True)
class Waits:
    """Of some steps; `most` is None if they were not counted."""

    most: int | None  # in a step
    places: dict[str, int]  # file:line to number
    detail: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def reported(device: torch.device) -> Iterator[None]:
    """Let torch warn of each wait. It could raise instead, but not allow for one."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def count(trainer: Any, mode: Callable[[torch.device], Any] = reported, steps: int = STEPS) -> Waits:
    """The waits of steps after a few others."""
    if trainer.device.type != "cuda" and mode is reported:
        return Waits(None, {}, REASON)
    most, places, training = 0, Counter[str](), synthetic.Training(trainer)
    for number, prepared in enumerate(synthetic.batches(trainer, WARM_UP + steps)):
        if number < WARM_UP:
            training.step(number, prepared)
            continue
        with warnings.catch_warnings(record=True) as heard, mode(trainer.device):
            warnings.simplefilter("always")
            training.step(number, prepared)
        found = [each for each in heard if SIGN in str(each.message)]
        most = max(most, len(found))
        places.update(f"{short(each.filename)}:{each.lineno}" for each in found)
    return Waits(most, dict(places.most_common()))


def short(file: str) -> str:
    """A file without the folders above its package."""
    parts = file.replace("\\", "/").split("/")
    tops = [
        n for n, part in enumerate(parts) if part in ("xmclab", "torch", "transformers") or part.startswith("xmclab_")
    ]
    return "/".join(parts[tops[-1] :]) if tops else parts[-1]
