"""From texts to written answers: a block at a time."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.serve import predictor as module
from xmclab.serve.bulk import Asked, write_answers
from xmclab.serve.open import open_predictor
from xmclab.serve.output import JsonLines, Shape
from xmclab.serve.predictor import Predictor
from xmclab.serve.texts import TextRecord


@pytest.fixture(scope="module")
def predictor(small_run: Path) -> Predictor:
    return open_predictor(small_run, default_registry(), "cpu")


def test_a_block_is_written_before_the_next_is_read(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory does not depend on the number of texts."""
    monkeypatch.setattr(module, "CHUNKS_OF_A_BLOCK", 1)
    monkeypatch.setattr(Predictor, "_chunk", 3)
    out, ahead = io.StringIO(), []

    def texts() -> Iterator[TextRecord]:
        for number in range(20):
            ahead.append(number + 1 - out.getvalue().count("\n"))
            yield TextRecord(f"text {number}")

    asked = Asked.of(predictor, 2, "de", None)
    counts: list[int] = []
    write_answers(predictor, texts(), asked, JsonLines(out, Shape(predictor.labels, 20)), counts.append)
    assert max(ahead) == 3
    assert counts == [3] * 6 + [2]
    assert [json.loads(line)["row"] for line in out.getvalue().splitlines()] == list(range(20))


def test_labels_below_the_threshold_are_left_out(predictor: Predictor) -> None:
    texts = ["plot functions", "music player", "perl"]
    whole = predictor.rank(texts, 9, "de+clf")
    limit = float(sorted(whole.scores_NK.ravel())[13])
    (_, found) = next(predictor.answer(texts, 9, "de+clf", threshold=limit))
    kept = whole.scores_NK >= limit
    assert 0 < kept.sum() < kept.size
    assert (found.ids_NK[kept] == whole.ids_NK[kept]).all()
    assert (found.ids_NK[~kept] == -1).all()


def test_what_is_asked_is_checked(predictor: Predictor) -> None:
    assert Asked.of(predictor, 10**9, None, 0.5) == Asked(len(predictor.labels), "de+clf", 0.5)
    for k, head, threshold, message in (
        (0, None, None, "k=0"),
        (1, "x", None, "--head x"),
        (1, None, float("nan"), "nan"),
    ):
        with pytest.raises(ConfigError, match=message):
            Asked.of(predictor, k, head, threshold)
