"""Faults of the process and the disk while a run trains: nothing is lost, and the numbers stay the same.

1  kill -9 in training, in a refresh, in an evaluation: resumed, the run is bit for bit the undisturbed one
2  kill -9 while a checkpoint is being written: the one before is used, what is left over is swept
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from xmclab.runs import checkpoints, shards, store
from xmclab.runs.measure import Queries
from xmclab.training.trainer import Trainer

MINED = ["epochs=4", "sampler=cluster", "miner=ann", "refresh_every=1", "evaluate.every=2", "optim.decay=0.1"]
VALIDATED = ["epochs=4", "validate.share=0.2", "sampler=cluster", "refresh_every=2", "head.clf.table=adagrad"]
STREAMED = ["epochs=2", "reduction.clf=pal_n", "head.clf.table_dtype=bfloat16", "encoder.feature_dropout=0.3"]
RESIDUAL = ["epochs=2", "encoder.hidden=8", "head.clf.bias=label", "search=neighbours", "encoder.table=sgd"]
Make = Callable[[Sequence[str]], Any]


# 1


@pytest.mark.parametrize(
    ("overrides", "deaths"),
    [
        (MINED, [(Trainer, "step", 4), (Trainer, "step", 7), (Trainer, "step", 5)]),
        (MINED, [(Trainer, "see", 2), (Queries, "_rank", 1), (Queries, "_rank", 2)]),
        (VALIDATED, [(Trainer, "step", 9), (Queries, "_rank", 2), (Trainer, "step", 2)]),
        (VALIDATED, [(store, "save_model", 1), (Queries, "baselines", 1), (store, "save_points", 1)]),
        (STREAMED, [(Trainer, "step", 3), (Trainer, "step", 6)]),
        (RESIDUAL, [(Trainer, "step", 8), (store, "save_search", 1)]),
    ],
    ids=["training", "refresh and evaluation", "validation", "the end", "streamed bfloat16", "other parts"],
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    mortal: Make, undisturbed: Make, signal_at: Any, overrides: list[str], deaths: list[tuple[Any, str, int]]
) -> None:
    victim = mortal([*overrides, "checkpoint.every=2"])
    expected = undisturbed(overrides)
    for owner, name, call in deaths:
        victim.dies(signal_at(owner, name, call))
    found = victim.ends()
    assert victim.resumed, "nothing was resumed: the test proves nothing"
    assert found.losses == expected.losses
    assert found.terms == expected.terms
    assert found.measured == expected.measured
    assert found.result == expected.result
    assert found.weights == expected.weights
    assert not (victim.folder / "checkpoints").exists()


def test_steps_are_repeated_and_recorded_once(mortal: Make, undisturbed: Make, signal_at: Any) -> None:
    """Killed at its last step, three after the latest checkpoint."""
    victim = mortal(["checkpoint.every=6"])
    victim.dies(signal_at(Trainer, "step", 10))
    recorded = [line for line in (victim.folder / "metrics.jsonl").read_text().splitlines() if '"step"' in line]
    assert '"step": 8' in recorded[-1]
    assert victim.ends() == undisturbed([])
    assert victim.resumed == [6]


# 2


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (shards, "write_tensors", 5),  # in the middle of the second checkpoint
        (shards, "described", 2),  # its manifest is missing
        (shards, "synced", 5),  # complete, but in its temporary place
        (checkpoints.Checkpoints, "_prune", 2),  # in place, with the old ones still there
    ],
    ids=["writing", "describing", "renaming", "pruning"],
)
def test_a_checkpoint_is_whole_or_absent(
    mortal: Make, undisturbed: Make, signal_at: Any, owner: Any, name: str, call: int
) -> None:
    victim = mortal(["checkpoint.every=3", "checkpoint.keep=1"])
    victim.dies(signal_at(owner, name, call))
    root = victim.folder / "checkpoints"
    assert any(path.name.startswith(".tmp-") for path in root.iterdir()) == (name != "_prune")
    found = checkpoints.newest(victim.folder)
    assert found
    assert found.at.step == (6 if name == "_prune" else 3)
    victim.dies(signal_at(Trainer, "step", 1))
    assert not any(path.name.startswith(".tmp-") for path in root.iterdir())
    assert victim.ends() == undisturbed([])
    assert victim.resumed == [found.at.step]  # the other time is cut off with what followed
