"""A run in small: what is scaled, and what is as in the run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from xmclab.data import open_data
from xmclab.host.config import Config
from xmclab.plan.indexes.exact import Exact
from xmclab.runs import rehearsal
from xmclab.runs.rehearsal import Built, Lists, all_vectors, repeated, spread, timed
from xmclab.training.trainer import Trainer


def test_rows_are_repeated_until_there_are_enough() -> None:
    x_SD = torch.arange(6.0).view(3, 2)
    assert repeated(x_SD, 7).tolist() == [*x_SD.tolist(), *x_SD.tolist(), [0.0, 1.0]]
    assert repeated(x_SD, 3) is x_SD


@pytest.mark.parametrize(("seconds", "whole"), [(20.0, True), (-1.0, False)])
def test_vectors_that_take_long_are_copies_of_a_sample(
    small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, seconds: float, whole: bool
) -> None:
    trainer = small_trainer()
    monkeypatch.setattr(rehearsal, "ENCODE_SECONDS", seconds)
    tokens, expected = trainer.query_tokens, trainer.model.query_vectors(trainer.query_tokens, 100)
    found, predicted = all_vectors(lambda t: trainer.model.query_vectors(t, 100), tokens, 100)
    assert {name: v.shape for name, v in found.items()} == {name: v.shape for name, v in expected.items()}
    assert found.together.shape == expected.together.shape
    assert predicted > 0
    assert torch.allclose(found.together, expected.together, atol=1e-5) == whole
    assert (len(found.together.unique(dim=0)) > 200) == whole


def test_an_index_adapts_to_as_many_queries_as_the_run_has() -> None:
    seen: list[int] = []

    class Noting(Exact):
        def tune(self, q_ND: torch.Tensor, rng: np.random.Generator) -> None:
            seen.append(len(q_ND))

    index = Built(Noting(), 70)
    index.build(torch.eye(4))
    index.tune(torch.eye(4), np.random.default_rng(0))
    assert seen == [70]
    assert len(index.seconds) == 2
    assert index.search(torch.eye(4)[:2], 1)[0].tolist() == [[0], [1]]
    assert not index.shares_products
    index = Built(Exact(shortlist="float16"), 70)
    index.build(torch.eye(4))
    assert index.shares_products
    assert index.search_parts(torch.eye(4)[1:2], [3, 1], 1)[2][0].tolist() == [[1]]


def test_after_a_refresh_any_batch_has_mined_negatives(
    small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "MINED", 100)
    trainer = small_trainer("miner=ann", "pool.eta=3", "refresh_every=1")
    before = trainer.prepare(0, trainer.rows_N[-50:]).batch
    view, seconds = rehearsal.refresh(trainer, 1)
    after = trainer.prepare(0, trainer.rows_N[-50:]).batch
    assert isinstance(trainer.miner.sample, Lists)
    assert view.queries_ND.shape == (len(trainer.data.train), 16)
    assert (before.missing, after.missing) == (150, 0)
    assert len(after.labels_P) > len(before.labels_P)
    assert seconds > 0


def test_a_miner_is_prepared_for_a_sample_of_the_queries(
    small_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "MINED", 100)
    config = small_config("miner=bm25", "miner.depth=4", "pool.eta=3")
    trainer = Trainer(config, open_data(config), prepares=False)
    assert trainer.prepare(0, trainer.rows_N[-50:]).batch.missing == 150
    seconds = rehearsal.prepare_miner(trainer)
    assert trainer.miner.lengths_N.shape == (100,)
    assert trainer.prepare(0, trainer.rows_N[-50:]).batch.missing < 10
    assert seconds > 0
    assert rehearsal.prepare_miner(Trainer(small_config("miner=random"), trainer.data)) == 0


def test_steps_go_round_where_an_epoch_is_short(small_trainer: Callable[..., Trainer]) -> None:
    trainer = small_trainer()
    usual, first = rehearsal.steps(trainer, trainer.plan(0)[:1], 0)
    assert usual > 0
    assert first >= 0


def test_samples_are_spread_and_calls_are_timed() -> None:
    assert spread(9, 3).tolist() == [0, 4, 8]
    result, seconds = timed(lambda: 5)
    assert result == 5
    assert seconds >= 0
