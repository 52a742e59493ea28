"""What `encode.chunk=auto` stands for. `test_card.py` has the parts that it is computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from xmclab.runs import step_memory
from xmclab.runs.run import run
from xmclab.runs.sizes import model_parts, peak
from xmclab.runs.step_memory import GRAPHS, USABLE, fit_chunk, parts_on_card
from xmclab.training.trainer import Trainer

BYTES = 100_000  # that each token keeps


@pytest.fixture
def fitted(small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A trainer with so many bytes for the weights and a step, after its chunk was fitted, and what was said."""

    def make(room: float | None, *overrides: str) -> tuple[Trainer, str]:
        made = small_trainer("pool.cap=200", *overrides)
        monkeypatch.setattr(made.model.encoder, "graph_bytes", lambda tokens, half: tokens * BYTES)
        held = sum(part.bytes for part in model_parts(made.model) if part.held)
        free = None if room is None else round(room / USABLE) + 1 - held
        monkeypatch.setattr(step_memory.usage, "free", lambda: free)
        return made, fit_chunk(made)

    return make


def needed(made: Trainer, chunk: int) -> int:
    return peak(parts_on_card(made, chunk=chunk, half=False), "device")


def test_auto_is_the_largest_chunk_that_fits_and_graphs_take_the_rest(fitted: Callable[..., Any]) -> None:
    whole, _ = fitted(None, "encode.chunk=auto")
    made, said = fitted(needed(whole, 64) + 5, "encode.chunk=auto")
    assert made.chunk == 64
    parts = [part for part in parts_on_card(made, half=False) if part.name != GRAPHS]
    assert made.graph_room == pytest.approx(needed(whole, 64) + 5 - peak(parts, "device"), abs=3)
    assert said.startswith("encode.chunk=auto: 64 texts at once, ")
    prepared = made.prepare(0, made.rows_N[:128])
    assert len(prepared.queries) == 2
    assert made.step(0, prepared)["loss"] > 0


@pytest.mark.parametrize(("room", "chunk"), [(1e12, 0), (1.0, 1), (None, 0)])
def test_all_texts_or_one_at_a_time_at_the_ends(fitted: Callable[..., Any], room: float | None, chunk: int) -> None:
    made, said = fitted(room, "encode.chunk=auto")
    assert made.chunk == chunk
    assert bool(said) == bool(chunk)


def test_a_chunk_that_was_chosen_stays(fitted: Callable[..., Any]) -> None:
    made, said = fitted(1.0, "encode.chunk=32")
    assert (made.chunk, made.graph_room, said) == (32, None, "")


def test_a_run_trains_with_what_was_chosen(
    small_config: Callable[..., Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are those of any chunk."""
    console = Console(file=(tmp_path / "said.txt").open("w"), width=200)

    def choose(trainer: Trainer, validates: bool) -> str:
        trainer.chunk, trainer.graph_room = 50, 1e9
        return "50 texts at once"

    plain = run(small_config("encoder.feature_dropout=0"), tmp_path / "plain", Console(quiet=True))
    monkeypatch.setattr("xmclab.runs.run.fit_chunk", choose)
    chosen = run(small_config("encode.chunk=auto", "encoder.feature_dropout=0"), tmp_path / "chosen", console)
    console.file.close()
    assert "50 texts at once" in (tmp_path / "said.txt").read_text()
    for name, metrics in plain.metrics.items():
        assert chosen.metrics[name]["P@1"] == pytest.approx(metrics["P@1"], abs=0.5)
