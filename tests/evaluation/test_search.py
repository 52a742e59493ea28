"""Rankings of all labels: filtered pairs are in none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_filter_pairs_are_left_out_of_every_ranking(tmp_path: Path, small_trainer: Callable[..., Any]) -> None:
    from xmclab.evaluation.search import rank_all

    made = small_trainer()
    data = made.data
    tokens = made.model.encoder.tokenise(data.test.texts)
    rankings = rank_all(
        made.model, lambda: made.config.make("index"), tokens, made.label_tokens, data.test.filter_NL, 100, 512
    )
    assert list(rankings) == ["de", "clf", "de+clf"]
    rows, columns = data.test.filter_NL.nonzero()
    for ranking in rankings.values():
        assert not (ranking.ids_NK[rows] == columns[:, None]).any()
