"""Goal 14: dropout by keys instead of torch's generator, and instead of none, in whole steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from harness import THREADS, Row, interleaved, without_numba
from step import Step, dataset

from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.dropout import KeyedDropout
from xmclab.training.batches import Prepared
from xmclab.training.trainer import Trainer

BOUND = 1.03


def without_keys(prepared: Prepared) -> Prepared:
    """The same batch, with dropout from torch's generator."""
    queries, labels = ([chunk._replace(key_B=None) for chunk in side] for side in (prepared.queries, prepared.labels))
    return replace(prepared, queries=queries, labels=labels, key_Q=None, key_P=None)


def without_dropout(trainer: Trainer, run: Callable[[], object]) -> Callable[[], None]:
    """The call while every rate is 0."""
    encoder = trainer.model.encoder
    owners = [(module, "p") for module in trainer.model.modules() if isinstance(module, KeyedDropout)]
    owners += [(encoder, "feature_dropout")] if hasattr(encoder, "feature_dropout") else []
    rates = [getattr(owner, name) for owner, name in owners]

    def plain() -> None:
        for owner, name in owners:
            setattr(owner, name, 0.0)
        run()
        for (owner, name), rate in zip(owners, rates, strict=True):
            setattr(owner, name, rate)

    return plain


def compare(what: str, trainer: Trainer, prepared: Prepared, repeats: int) -> list[Row]:
    """Rows with numba and without."""

    def ours() -> None:
        trainer.step(0, prepared)

    other = without_keys(prepared)
    t = interleaved(
        {
            "keyed": ours,
            "torch": lambda: trainer.step(0, other),
            "none": without_dropout(trainer, ours),
        },
        repeats,
    )
    plain = interleaved({"keyed": without_numba(ours), "torch": without_numba(lambda: trainer.step(0, other))}, repeats)
    beside = f"torch's {t['torch'] * 1e3:.0f} ms, no dropout {t['none'] * 1e3:.0f} ms"
    with_numba = f"{t['keyed'] * 1e3:.0f} ms", beside, t["keyed"] / t["torch"]
    without = (
        f"{plain['keyed'] * 1e3:.0f} ms",
        f"torch's {plain['torch'] * 1e3:.0f} ms",
        plain["keyed"] / plain["torch"],
    )
    what = f"a step with dropout by keys: {what}"
    return [Row(14, what, *with_numba, BOUND), Row(14, f"{what}, without numba", *without, BOUND)]


def measure() -> list[Row]:
    registry = default_registry()
    debian = Trainer(resolve(["recipe=unidec"], registry), open_dataset("debian", "title", registry))
    prepared = debian.prepare(0, debian.plan(1, debian.refresh(1))[0])
    rows = compare("`recipe=unidec data=debian`", debian, prepared, 9)
    bert = Step(dataset(), 2, 128)
    return rows + compare(bert.shape, bert.trainer, bert.prepared, 5)


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    print(measure())
