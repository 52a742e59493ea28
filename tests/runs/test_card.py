"""What a run holds on a card that is not here. `tests/cuda` compares it with a ledger of every tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from xmclab.errors import ConfigError
from xmclab.runs import sizes
from xmclab.runs import step_memory as cards
from xmclab.runs.card import card_of, plan_for, verdict
from xmclab.runs.step_memory import fitting_chunk, parts_on_card, tokens_at_once
from xmclab.system.cards import CARDS, Card
from xmclab.training.trainer import Trainer

GIB = 1 << 30
BYTES = 100_000  # that each token keeps


@pytest.fixture
def trainer(small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Its encoder keeps something for the gradient."""
    made = small_trainer("pool.cap=200")
    monkeypatch.setattr(made.model.encoder, "graph_bytes", lambda tokens, half: tokens * BYTES)
    return made


def small_card(size: int) -> Card:
    return Card("small", size / GIB, 1, 1, 1, (8, 0))


def test_an_unknown_card_is_refused_with_those_that_are_known() -> None:
    assert card_of("l4-24") is CARDS["l4-24"]
    with pytest.raises(ConfigError, match="--device b300: unknown card"):
        card_of("b300")


def test_both_sides_keep_their_graphs_unless_queries_are_chunked(trainer: Trainer) -> None:
    queries, pool = sizes.step_sizes(trainer)
    per_query, per_label = (len(t.ids) / len(t) for t in (trainer.query_tokens, trainer.label_tokens))
    assert tokens_at_once(trainer, 0) == (round(queries * per_query) + round(pool * per_label), round(pool * per_label))
    chunk = queries // 2
    assert tokens_at_once(trainer, chunk)[0] == max(round(chunk * per_query), round(chunk * per_label))


def test_everything_that_a_step_needs_is_on_the_card(trainer: Trainer) -> None:
    parts = {part.name: part for part in parts_on_card(trainer) if part.place == "device"}
    assert parts["activations"].bytes == BYTES * tokens_at_once(trainer, 0)[0]
    assert parts["tables"].bytes == sizes.nbytes(table.weight for table in trainer.model.tables())
    assert parts["optimizer of tables"].bytes == 2 * parts["tables"].bytes
    queries, pool = sizes.step_sizes(trainer)
    assert parts["scores, draws of dropout or gradients"].bytes >= 2 * 4 * queries * pool
    assert "weights" not in {part.name for part in parts_on_card(trainer) if part.place == "host"}


def test_searches_compare_blocks(small_trainer: Callable[..., Trainer]) -> None:
    trainer = small_trainer("index=exact", "index.query_block=16", "index.label_block=32")
    (block,) = (part for part in parts_on_card(trainer) if part.name == "scores of a search")
    assert (block.bytes, block.phase) == (2 * 4 * 16 * 32, "evaluation")


def test_the_chunk_that_fits_is_found_and_named(trainer: Trainer) -> None:
    whole = sizes.peak(parts_on_card(trainer, chunk=0), "device")
    half = sizes.peak(parts_on_card(trainer, chunk=64), "device")
    assert half < whole
    assert fitting_chunk(trainer, 2 * whole) == 0
    assert verdict(trainer, parts_on_card(trainer), small_card(2 * whole)) == ""
    tight = small_card(round(half / cards.USABLE) + 1000)
    assert fitting_chunk(trainer, half + 1000) == 64
    text = verdict(trainer, parts_on_card(trainer), tight)
    assert text.startswith("small: ")
    assert text.endswith("encode.chunk=64 fits (gradients stay exact)")


def test_where_no_chunk_helps_the_largest_parts_are_to_be_lowered(trainer: Trainer) -> None:
    tiny = small_card(1000)
    assert fitting_chunk(trainer, 1000) is None
    assert "lower encode.chunk" in verdict(trainer, parts_on_card(trainer), tiny)


def test_a_plan_for_a_card_has_no_times(small_config: Callable[..., object]) -> None:
    plan = plan_for(small_config("device=cpu"), CARDS["a100-80"])  # type: ignore[arg-type]
    assert (plan.device, plan.training, plan.others) == ("a100-80", (), ())
    assert plan.free["device"] == round(CARDS["a100-80"].memory_gib * GIB)
    assert 0 < plan.peak("device") < plan.free["device"]
    assert plan.document()["seconds"] is None
    assert not plan.warnings
