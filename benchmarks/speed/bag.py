"""Goal 12: an epoch of UniDEC with the bag encoder on the embedded data: throughput, and where the time goes."""

from __future__ import annotations

import time
from collections import defaultdict

import torch
from harness import Row

from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.training.trainer import Trainer


def measure() -> list[Row]:
    registry = default_registry()
    config = resolve(["recipe=unidec"], registry)
    trainer = Trainer(config, open_dataset("debian", "title", registry))
    trainer.refresh(1)
    plan = trainer.plan(1)
    times: dict[str, float] = defaultdict(float)
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        times[name] += now - clock
        clock = now

    for step, rows in enumerate(plan):
        prepared = trainer.prepare(step, rows)
        lap("plan and collate (hidden in a thread)")
        trainer.backward(step, prepared)
        lap("forward and backward")
        trainer.optimizers.clip()
        trainer.optimizers.step()
        lap("update")
    whole = sum(times.values()) - times["plan and collate (hidden in a thread)"]
    rate = len(trainer.rows_N) / whole
    shares = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in times.items())
    touched = trainer.model.encoder.embedding.weight.shape[0]
    note = f"{shares}; sparse updates of {touched} feature rows"
    return [Row(12, "epoch on debian, batches of 1024", f"{rate:.0f} queries/s", note, rate, 0.0, ">=")]


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(measure())
