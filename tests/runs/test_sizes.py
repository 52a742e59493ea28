"""What a run holds, by arithmetic, against what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from xmclab.errors import MemoryLimitError, StorageError
from xmclab.model.tables import RowOptimizer, RowTable, TableDtype, TableOptimizer
from xmclab.runs import sizes
from xmclab.runs.sizes import Part
from xmclab.training.state import state_of
from xmclab.training.trainer import Trainer

ROWS, WIDTH = 50, 12
VIEWS = ("epochs=4", "refresh_every=1", "miner=ann", "pool.eta=3")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adagrad", "sgd"])
def test_table_bytes_are_rows_times_width_times_bytes(optimizer: TableOptimizer, dtype: TableDtype) -> None:
    table = RowTable(ROWS, WIDTH, 0.1, optimizer, dtype)
    weights, state = ROWS * WIDTH * (2 if dtype == "bfloat16" else 4), sizes.table_state_bytes(table)
    assert sizes.nbytes([table.weight]) == weights
    assert state == {"adamw": ROWS * WIDTH * 8, "adagrad": ROWS * 4, "sgd": 0}[optimizer]

    torch.nn.init.zeros_(table.weight)
    optimizer_ = RowOptimizer([table])
    table(torch.arange(3)).sum().backward()
    optimizer_.step()
    held = [value for value in optimizer_.state[table.weight].values() if isinstance(value, torch.Tensor)]
    assert sizes.nbytes(held) == state


def test_a_fixed_table_has_no_state() -> None:
    table = RowTable(ROWS, WIDTH, 0.1)
    table.weight.requires_grad_(False)
    assert sizes.table_state_bytes(table) == 0


def test_the_optimizers_hold_what_was_computed(small_trainer: Callable[..., Trainer]) -> None:
    trainer = small_trainer("encoder.towers=residual", "head.clf.table=adagrad", "head.de.bias=label")
    for step, batch in enumerate(trainer.batches(trainer.plan(0), 0)):
        trainer.step(step, batch)
    states = [state for each in trainer.optimizers._all for state in each.state.values()]
    tensors = [x for state in states for x in state.values() if isinstance(x, torch.Tensor) and x.numel() > 1]
    steps = 4 * len(states)
    assert sizes.nbytes(tensors) == pytest.approx(sizes.optimizer_bytes(trainer.model), abs=steps)


def test_a_checkpoint_holds_views_only_where_one_is_made(small_trainer: Callable[..., Trainer]) -> None:
    plain, viewing = small_trainer(), small_trainer(*VIEWS)
    labels, queries = viewing.data.num_labels, len(viewing.data.train)
    difference = sizes.state_bytes(viewing) - sizes.state_bytes(plain)
    assert difference == (labels + queries) * 16 * 4 + queries * (3 * 4 + 8)
    viewing.refresh(1)
    view = viewing.view
    assert view is not None
    assert sizes.view_bytes(viewing) == view.queries_ND.nbytes + view.labels_LD.nbytes


def test_lists_made_before_training_are_counted(small_trainer: Callable[..., Trainer]) -> None:
    made = small_trainer("miner=bm25", "miner.depth=5", "pool.eta=2")
    queries = len(made.data.train)
    assert sizes.listed_bytes(made) == queries * (5 * 4 + 8)
    assert sizes.listed_bytes(made) >= made.miner.lengths_N.sum() * 4
    assert [part.bytes for part in sizes.memory_parts(made) if part.name == "listed negatives"] == [queries * 28]
    for overrides in ([], ["miner=bm25", "pool.eta=0"], VIEWS):
        assert sizes.listed_bytes(small_trainer(*overrides)) == 0


@pytest.mark.parametrize("project_in", ["always", "training"])
@pytest.mark.parametrize("bias", ["none", "label"])
def test_the_width_of_search_vectors_is_known(
    small_trainer: Callable[..., Trainer], bias: str, project_in: str
) -> None:
    biases = f"head.de.bias={bias}", f"head.clf.bias={bias}"
    trainer = small_trainer(*biases, "head.clf.dim=12", "head.de.dim=10", f"head.de.project_in={project_in}")
    vectors = trainer.model.label_vectors(trainer.label_tokens, 256)
    assert {name: sizes.search_width(trainer, name) for name in vectors} == {n: v.shape[1] for n, v in vectors.items()}


def test_a_peak_is_what_lasts_and_the_largest_phase() -> None:
    parts = [Part("a", 5), Part("b", 7, phase="training"), Part("c", 4, phase="refresh"), Part("d", 6, phase="refresh")]
    assert sizes.peak(parts, "host") == 15
    assert sizes.largest_phase(parts, "host") == "refresh"
    assert sizes.peak([*parts, Part("e", 9, "device")], "host") == 15
    assert sizes.peak([], "device") == 0


def lower_room(monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    monkeypatch.setattr("xmclab.system.usage.free", lambda: room)


def test_enough_room_needs_no_warning(
    small_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_trainer()
    assert sizes.shortages(trainer, tmp_path) == []
    lower_room(monkeypatch, None)  # a system that does not tell
    assert sizes.shortages(trainer, tmp_path) == []


def test_a_shortage_says_what_to_lower(
    small_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_trainer()
    lower_room(monkeypatch, 1000)
    monkeypatch.setattr(sizes, "disk_free", lambda folder: 10)
    memory, disk = sizes.shortages(trainer, tmp_path)
    assert memory.startswith("memory: at least ")
    assert "1000 B is free; lower " in memory
    assert "head.clf.table_dtype=bfloat16, head.clf.table=adagrad or sgd" in memory
    assert disk.startswith("disk: ")
    assert str(tmp_path) in disk


def test_nothing_is_kept_where_the_model_is_not(small_trainer: Callable[..., Trainer]) -> None:
    assert sizes.disk_bytes(small_trainer("keep_model=false", "checkpoint.every=0")) == 0
    assert sizes.disk_bytes(small_trainer()) >= sizes.model_bytes(small_trainer().model)


def test_a_checkpoint_has_the_bytes_that_were_computed(small_trainer: Callable[..., Trainer]) -> None:
    """But for the counts of steps in the optimizer."""
    trainer = small_trainer("head.clf.table=adagrad")
    for step, batch in enumerate(trainer.batches(trainer.plan(0), 0)):
        trainer.step(step, batch)
    assert sizes.state_bytes(trainer) == pytest.approx(state_of(trainer).bytes, abs=100)
    assert sizes.disk_bytes(small_trainer("keep_model=false")) == 3 * sizes.state_bytes(small_trainer())


def test_a_disk_without_room_for_a_checkpoint_is_refused(
    small_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_trainer()
    sizes.refuse_full_disk(trainer, tmp_path)
    monkeypatch.setattr(sizes, "disk_free", lambda folder: 1_000_000)
    with pytest.raises(StorageError, match=r"no room for the model and a checkpoint: [\d,]+ bytes needed, 1,000,000"):
        sizes.refuse_full_disk(trainer, tmp_path)
    sizes.refuse_full_disk(small_trainer("keep_model=false", "checkpoint.every=0"), tmp_path)


def test_free_disk_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    there, below = sizes.disk_free(tmp_path), sizes.disk_free(tmp_path / "a" / "b")
    assert there is not None
    assert below is not None
    assert abs(there - below) < 1 << 30


def test_heads_that_cannot_exist_are_refused_before_they_are_made(
    small_trainer: Callable[..., Any], small_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small_trainer().data
    config = small_config("head.clf.dim=500000000")
    with pytest.raises(MemoryLimitError, match=r"for 922 labels.*lower head\.clf\.table_dtype"):
        sizes.refuse_too_large(config, data)
    lower_room(monkeypatch, None)
    sizes.refuse_too_large(config, data)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.00 GiB")]
)
def test_sizes_are_readable(number: int, text: str) -> None:
    assert sizes.size(number) == text


def test_texts_encoded_at_once(small_trainer: Callable[..., Trainer]) -> None:
    trainer: Any = small_trainer("pool.cap=300")
    assert sizes.texts_at_once(trainer) == 300
    trainer.chunk = 64
    assert sizes.texts_at_once(trainer) == 64
    trainer.fixed = "vectors of a frozen encoder"
    assert sizes.texts_at_once(trainer) == 0
