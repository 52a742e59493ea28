"""Faults of the process and the disk while a run trains: nothing is lost, and the numbers stay the same.

1  kill -9 in training, in a refresh, in an evaluation: resumed, the run is bit for bit the undisturbed one
2  kill -9 while a checkpoint is being written: the one before is used, what is left over is swept;
   while files beside the checkpoints are written: they are written again
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from xmclab.errors import DataError
from xmclab.runs import checkpoints, shards, store
from xmclab.runs.lock import claimed
from xmclab.runs.measure import Queries
from xmclab.runs.run import run
from xmclab.training.trainer import Trainer

MINED = ["epochs=4", "sampler=cluster", "miner=ann", "refresh_every=1", "evaluate.every=2", "optim.decay=0.1"]
STEPWISE = ["epochs=4", "sampler=cluster", "miner=ann", "refresh_steps=3", "evaluate.every=2", "optim.decay=0.1"]
PREPARED = ["epochs=2", "miner=bm25", "miner.depth=8", "pool.eta=3"]
VALIDATED = ["epochs=4", "validate.share=0.2", "sampler=cluster", "refresh_every=2", "head.clf.table=adagrad"]
STREAMED = ["epochs=2", "reduction.clf=pal_n", "head.clf.table_dtype=bfloat16", "encoder.feature_dropout=0.3"]
RESIDUAL = ["epochs=2", "encoder.hidden=8", "head.clf.bias=label", "search=neighbours", "encoder.table=sgd"]
STAGED = ["stages.phi.epochs=2", "stages.phi.head.clf=none", "stages.psi.epochs=3", "stages.psi.start=phi"]
STAGED += ["stages.psi.freeze=encoder,head.de", "head.de.bias=label"]
LABELS = ["epochs=2", "head.de=label_clusters", "head.de.dim=16", "head.de.clusters=50"]
LABELS += ["head.clf=label_residual", "head.clf.dim=16", "head.clf.table=momentum", "optim.no_decay=own_rows"]
Make = Callable[[Sequence[str]], Any]


# 1


@pytest.mark.parametrize(
    ("overrides", "deaths"),
    [
        (MINED, [(Trainer, "launch", 4), (Trainer, "launch", 7), (Trainer, "launch", 5)]),
        (MINED, [(Trainer, "see", 2), (Queries, "_rank", 1), (Queries, "_rank", 2)]),
        (STEPWISE, [(Trainer, "see", 2), (Trainer, "launch", 4), (Queries, "_rank", 1), (Trainer, "launch", 1)]),
        (PREPARED, [(Trainer, "launch", 8), (Trainer, "launch", 3)]),
        (VALIDATED, [(Trainer, "launch", 9), (Queries, "_rank", 2), (Trainer, "launch", 2)]),
        (VALIDATED, [(store, "save_model", 1), (Queries, "baselines", 1), (store, "save_points", 1)]),
        (STREAMED, [(Trainer, "launch", 3), (Trainer, "launch", 6)]),
        (RESIDUAL, [(Trainer, "launch", 8), (store, "save_search", 1)]),
        (STAGED, [(Trainer, "launch", 4), (Trainer, "launch", 9), (Trainer, "ready", 1), (Trainer, "launch", 3)]),
        (LABELS, [(Trainer, "launch", 4), (Trainer, "launch", 5)]),
    ],
    ids=[
        "training",
        "refresh and evaluation",
        "refreshes in steps",
        "negatives by BM25",
        "validation",
        "the end",
        "streamed bfloat16",
        "other parts",
        "stages",
        "vectors of labels",
    ],
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


def test_a_killed_run_draws_from_the_same_file_or_not_at_all(
    mortal: Make, undisturbed: Make, signal_at: Any, tmp_path: Path
) -> None:
    file = tmp_path / "negatives.txt"
    rows = [f"{row % 900}:1 {row % 7 + 900}:1" for row in range(1262)]
    file.write_text("\n".join(["1262 922", *rows, ""]))
    overrides = ["epochs=2", "miner=file", f"miner.file={file}", "pool.eta=1", "validate.share=0.2"]
    victim = mortal([*overrides, "checkpoint.every=2"])
    victim.dies(signal_at(Trainer, "launch", 6))
    before = file.read_bytes()
    file.write_bytes(before.replace(b"899:1", b"898:1"))
    with pytest.raises(DataError, match="the file changed since the run began"):
        victim.ends()
    file.write_bytes(before)
    assert victim.ends() == undisturbed(overrides)
    assert victim.resumed == [4]


def test_steps_are_repeated_and_recorded_once(mortal: Make, undisturbed: Make, signal_at: Any) -> None:
    """Killed at its last step, three after the latest checkpoint."""
    victim = mortal(["checkpoint.every=6"])
    victim.dies(signal_at(Trainer, "launch", 10))
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
    victim.dies(signal_at(Trainer, "launch", 1))
    assert not any(path.name.startswith(".tmp-") for path in root.iterdir())
    assert victim.ends() == undisturbed([])
    assert victim.resumed == [found.at.step]  # the other time is cut off with what followed


@pytest.mark.parametrize("file", ["labels.jsonl", "environment.json", "config.yaml", "manifest.json"])
def test_a_run_that_was_killed_before_it_began_begins(
    mortal: Make, undisturbed: Make, monkeypatch: pytest.MonkeyPatch, in_child: Any, file: str
) -> None:
    """Killed with a file in its temporary place; the second time the folder is that of a run without a checkpoint."""
    victim = mortal(["checkpoint.every=1000"])

    def killed_at(file: str) -> Callable[[], None]:
        def arrange() -> None:
            replace = os.replace

            def fatal(source: Any, to: Any) -> None:
                if Path(to).name == file:
                    os.kill(os.getpid(), signal.SIGKILL)
                replace(source, to)

            os.replace = fatal

        return arrange

    victim.dies(killed_at(file))
    assert any(path.name.startswith(f".{file}.") for path in victim.folder.iterdir())
    victim.dies(killed_at("result.json"))
    victim.dies(killed_at(file))
    assert victim.ends() == undisturbed([])
    assert [path.name for path in victim.folder.glob(".*")] == [".lock"]


def test_files_of_others_are_not_swept(mortal: Make) -> None:
    victim = mortal([])
    run(victim.config, victim.folder, victim.quiet)
    others = [victim.folder / name for name in (".config.yaml.swp", ".notes.txt.12", ".config.yaml", "config.yaml.1")]
    for path in others:
        path.touch()
    with claimed(victim.folder, "", resume=True):
        assert all(path.is_file() for path in others)


@pytest.mark.parametrize("begun", [False, True], ids=["start", "end"])
def test_new_files_that_an_old_manifest_does_not_know_are_no_damage(
    mortal: Make, undisturbed: Make, signal_at: Any, begun: bool
) -> None:
    """Killed between writing files that differ from those of an earlier process, and describing them."""
    victim = mortal(["checkpoint.every=3" if begun else "checkpoint.every=1000"])
    victim.dies(signal_at(Queries, "baselines", 1))  # the weights are in the manifest
    different = ["optim.decay=0.5", "resume.allow=optim.decay", "checkpoint.keep=1"]
    changed = dataclasses.replace(mortal(different), folder=victim.folder)
    changed.dies(signal_at(store, "seal", 2 - begun))
    assert run(changed.config, victim.folder, victim.quiet, resume=True).metrics
