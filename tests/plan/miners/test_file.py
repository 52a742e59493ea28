"""Negatives from a file: every step draws from the query's own list, and what is left out is counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.data.validation import open_with_validation
from xmclab.errors import ConfigError
from xmclab.host.config import Config
from xmclab.training.trainer import Trainer


@pytest.fixture
def listed() -> sp.csr_array:
    """Five labels of each training query of `tiny`, scored, with a positive in every list."""
    from xmclab.data import open_dataset
    from xmclab.host.registry import default_registry

    data, rng = open_dataset("tiny", "title", default_registry()), np.random.default_rng(0)
    rows = []
    for row in range(len(data.train)):
        own = data.train.targets_NL[[row]].indices
        others = rng.permutation(np.setdiff1d(np.arange(data.num_labels), own))[:5]
        rows.append(np.sort(np.concatenate([own[:1], others])))
    offsets = np.cumsum([0, *map(len, rows)])
    return sp.csr_array((rng.random(offsets[-1]), np.concatenate(rows), offsets), shape=data.train.targets_NL.shape)


def test_a_step_draws_from_the_list_of_each_query(
    listed: sp.csr_array, small_config: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sp.save_npz(tmp_path / "negatives.npz", listed)
    config = small_config("miner=file", f"miner.file={tmp_path / 'negatives.npz'}", "pool.eta=3")
    with caplog.at_level(logging.INFO, "xmclab"):
        trainer = Trainer(config, open_with_validation(config).training)
    exclude = trainer.exclude_NL.toarray()
    wrong = (listed.toarray() > 0) & exclude
    kept = np.diff(listed.indptr) - wrong.sum(axis=1)
    counts = f"{kept.sum():,} negatives for 1,262 training queries, 0 have none; left out {wrong.sum():,} positives"
    assert counts in caplog.text
    drawn = trainer.miner.sample(trainer.rows_N, 3, trainer.exclude_NL, np.random.default_rng(0))
    assert (drawn >= 0).all()
    for row, labels in zip(trainer.rows_N, drawn, strict=True):
        assert set(labels) <= set(listed[[row]].indices) - set(np.flatnonzero(exclude[row]))
    batch = trainer.prepare(0, trainer.rows_N[:50]).batch
    assert batch.missing == 0
    assert trainer.refreshes.before == []


def test_data_that_was_opened_without_the_file_is_refused(
    listed: sp.csr_array, small_config: Callable[..., Config], tmp_path: Path, small_trainer: Callable[..., Trainer]
) -> None:
    with pytest.raises(ConfigError, match="opened without the file"):
        small_trainer("miner=file", f"miner.file={tmp_path / 'negatives.npz'}")
    assert small_trainer("miner=file", "pool.eta=0").miner.lengths_N.size == 0
